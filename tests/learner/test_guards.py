"""Every isolation guard detects the mistake that it is meant to detect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import nn
from torch.optim import AdamW

from continual_petl import ForgettingError, NoForgetting
from continual_petl.errors import IsolationError
from continual_petl.learner import ContinualLearner
from continual_petl.learner.isolation import check_modes
from tests.desk import SILENT, Desk
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]


class At(L.Callback):
    """Call ``act`` with the learner in one hook."""

    def __init__(self, hook: str, act: Callable[[ContinualLearner], object]) -> None:
        setattr(self, hook, lambda trainer, module, *args, **kwargs: act(module))


@pytest.fixture
def desk(backbone_folder: Folder, tmp_path: Path) -> Desk:
    desk = Desk(stream(backbone_folder(), [task("one", num_rows=16), task("two", num_rows=16)]), tmp_path)
    desk.fit("one", max_epochs=1)
    return desk


def with_optimizer(desk: Desk, choose: Callable[[ContinualLearner], list[nn.Parameter]]) -> None:
    def configure() -> Any:
        return AdamW(choose(desk.learner), lr=0.01)

    desk.learner.configure_optimizers = configure  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("choose", "named"),
    [
        (lambda learner: list(learner.parameters()), "model.embeddings.word_embeddings.weight"),
        (lambda learner: list(learner.banks.parameters()), r"banks\./one\.head\.output\.weight"),
        (
            lambda learner: [*learner.active_bank.parameters(), nn.Parameter(torch.zeros(2, 3))],
            r"shape \(2, 3\) that the learner does not hold",
        ),
    ],
)
def test_foreign_parameter_in_the_optimizer_is_refused(desk: Desk, choose: Any, named: str) -> None:
    with_optimizer(desk, choose)
    before = desk.digests("one")
    with pytest.raises(IsolationError, match=f"(?s)task 'two'.*{named}"):
        desk.fit("two")
    assert desk.digests("one") == before


def test_invalid_start_is_refused_before_the_first_batch(desk: Desk) -> None:
    begun: list[ContinualLearner] = []
    batch = At("on_train_batch_start", begun.append)
    switch_on = At(
        "on_fit_start", lambda learner: learner.get_parameter("model.pooler.dense.bias").requires_grad_(True)
    )
    with pytest.raises(IsolationError, match="is trainable"):
        desk.fit("two", callbacks=[switch_on, batch])
    desk.learner.get_parameter("model.pooler.dense.bias").requires_grad_(False)
    with_optimizer(desk, lambda learner: list(learner.parameters()))
    with pytest.raises(IsolationError, match="from outside the task's bank"):
        desk.fit("two", add=False, callbacks=[batch])
    assert begun == []


def test_reused_optimizer_is_refused(desk: Desk) -> None:
    kept = AdamW(desk.learner.bank("one").parameters(), lr=0.01)
    desk.learner.configure_optimizers = lambda: kept  # type: ignore[method-assign]
    with pytest.raises(IsolationError, match=r"task 'two'.*from outside the task's bank"):
        desk.fit("two")


def test_parameter_added_to_the_optimizer_later_is_refused(desk: Desk) -> None:
    def join(learner: ContinualLearner) -> None:
        optimizer = learner.trainer.optimizers[0]
        optimizer.add_param_group({"params": [learner.bank("one").head.get_parameter("output.bias")]})

    with pytest.raises(IsolationError, match=r"first is banks./one.head.output.bias"):
        desk.fit("two", callbacks=[At("on_train_batch_start", join)])


def test_parameter_missing_from_the_optimizer_is_refused(desk: Desk) -> None:
    with_optimizer(desk, lambda learner: list(learner.active_bank.parameters())[1:])
    with pytest.raises(IsolationError, match=r"task 'two'.*lacks 1 of them \(the first is head\.output\.weight\)"):
        desk.fit("two")


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")
def test_duplicate_parameter_in_the_optimizer_is_refused(desk: Desk) -> None:
    with_optimizer(desk, lambda learner: [*learner.active_bank.parameters(), *learner.active_bank.parameters()])
    with pytest.raises(IsolationError, match=r"task 'two'.*more than once"):
        desk.fit("two")


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")
def test_swapped_parameter_in_the_optimizer_is_refused(desk: Desk) -> None:
    def choose(learner: ContinualLearner) -> list[nn.Parameter]:
        _, second, *others = learner.active_bank.parameters()
        return [second, second, *others]

    with_optimizer(desk, choose)
    with pytest.raises(IsolationError, match=r"task 'two'.*lacks 1 of them \(the first is head\.output\.weight\)"):
        desk.fit("two")


@pytest.mark.parametrize("hook", ["on_fit_start", "on_train_batch_start"])
@pytest.mark.parametrize(
    ("part", "named"), [("model.pooler.dense.weight", "pooler.dense.weight"), ("bank", "head.output.bias")]
)
def test_backbone_requires_grad_is_refused(desk: Desk, hook: str, part: str, named: str) -> None:
    def switch_on(learner: ContinualLearner) -> None:
        tensor = (
            learner.bank("one").head.get_parameter("output.bias") if part == "bank" else learner.get_parameter(part)
        )
        tensor.requires_grad_(True)

    with pytest.raises(IsolationError, match=f"task 'two'.*{named} is trainable"):
        desk.fit("two", callbacks=[At(hook, switch_on)])


def test_backbone_gradient_is_refused(desk: Desk) -> None:
    def fill(learner: ContinualLearner) -> None:
        tensor = learner.get_parameter("model.pooler.dense.bias")
        tensor.grad = torch.zeros_like(tensor)

    with pytest.raises(IsolationError, match=r"model\.pooler\.dense\.bias has a gradient"):
        desk.fit("two", callbacks=[At("on_train_end", fill)])


def test_backbone_dropout_is_refused(desk: Desk) -> None:
    with pytest.raises(IsolationError, match=r"task 'two'.*in training mode.*backbone_dropout"):
        desk.fit("two", callbacks=[At("on_train_start", lambda learner: learner.model.train())])
    desk.learner.train()
    with pytest.raises(IsolationError, match="in training mode"):
        desk.fit("two", add=False, callbacks=[At("on_validation_epoch_start", lambda m: None), OnInValidation()])


class OnInValidation(L.Callback):
    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, ContinualLearner)
        pl_module.model.train()


def test_backbone_dropout_in_a_test_is_refused(desk: Desk) -> None:
    trainer = L.Trainer(**SILENT, callbacks=[At("on_test_start", lambda learner: learner.model.train())])
    with pytest.raises(IsolationError, match=r"task 'one'.*in training mode"):
        trainer.test(desk.learner, datamodule=desk.data["one"], verbose=False)


def test_mutable_statistics_are_refused_even_with_backbone_dropout() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.BatchNorm1d(2)).train()
    with pytest.raises(IsolationError, match="module 2 is in training mode"):
        check_modes("two", model, dropout=True)
    model[2].eval()
    check_modes("two", model, dropout=True)


def nudge(tensor: torch.Tensor, by: float = 1e-7) -> None:
    with torch.no_grad():
        tensor.view(-1)[0] += by


def test_changed_bias_of_an_earlier_bank_is_detected(desk: Desk) -> None:
    def act(learner: ContinualLearner) -> None:
        nudge(learner.bank("one").head.get_parameter("output.bias"))

    with pytest.raises(ForgettingError, match=r"task 'one': tensor head\.output\.bias .* while 'two' was learned"):
        desk.fit("two", callbacks=[At("on_train_end", act), NoForgetting()])


@pytest.mark.parametrize("name", ["encoder.layer.1.output.dense.bias", "embeddings.LayerNorm.weight"])
def test_changed_backbone_weight_is_detected(desk: Desk, name: str) -> None:
    act = At("on_train_end", lambda learner: nudge(learner.model.get_parameter(name)))
    with pytest.raises(ForgettingError, match=f"backbone .*1 tensor .*the first is {name}"):
        desk.fit("two", callbacks=[act, NoForgetting()])


def test_changed_or_added_backbone_buffer_is_detected(desk: Desk) -> None:
    act = At("on_train_end", lambda learner: learner.model.get_buffer("embeddings.position_ids").add_(1))
    with pytest.raises(ForgettingError, match=r"the first is embeddings\.position_ids"):
        desk.fit("two", callbacks=[act, NoForgetting()])
    desk.backbone.model.get_buffer("embeddings.position_ids").sub_(1)
    desk.backbone.model.register_buffer("extra", torch.zeros(1))
    desk.learner.evict("two")
    with pytest.raises(ForgettingError, match="the first is extra"):
        desk.fit("two", callbacks=[NoForgetting()])


def test_leftover_backbone_hook_is_detected(desk: Desk) -> None:
    def act(learner: ContinualLearner) -> None:
        layer = learner.model.get_submodule("encoder.layer.0.output.dense")
        layer.register_forward_hook(lambda module, args, output: output * 1.001)

    with pytest.raises(ForgettingError, match=r"task 'one': its outputs for fixed inputs changed.*hook"):
        desk.fit("two", callbacks=[At("on_train_end", act), NoForgetting()])


def test_used_trainer_is_refused(desk: Desk) -> None:
    trainer = desk.fit("two")
    desk.learner.evict("two")
    desk.learner.add_task(desk.plans["two"])
    with pytest.raises(RuntimeError, match=r"Create a new L.Trainer for every task"):
        trainer.fit(desk.learner, datamodule=desk.data["two"])


def test_repeated_task_and_task_without_bank_are_refused(desk: Desk) -> None:
    with pytest.raises(ValueError, match="task 'one' already has a bank"):
        desk.learner.add_task(desk.plans["one"])
    with pytest.raises(KeyError, match="'two' has no bank in memory; banks in memory: one"):
        desk.learner.activate("two")
    desk.learner.evict("one")
    with pytest.raises(RuntimeError, match="no task is active"):
        desk.learner(desk.batch("one"))


def test_checkpoint_of_another_task_is_refused(desk: Desk, tmp_path: Path) -> None:
    desk.fit("two", max_epochs=1).save_checkpoint(tmp_path / "two.ckpt")
    desk.learner.activate("one")
    with pytest.raises(ValueError, match="the checkpoint does not belong to task 'one'"):
        L.Trainer(**SILENT, max_epochs=2).fit(
            desk.learner, datamodule=desk.data["one"], ckpt_path=tmp_path / "two.ckpt", weights_only=True
        )
