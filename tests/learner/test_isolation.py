"""Learning a second task leaves the first bank, the backbone and the answers unchanged, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from continual_petl import NoForgetting
from continual_petl.digests import same_bits
from continual_petl.learner import ContinualLearner
from tests.desk import Desk
from tests.small import small
from tests.streams_in_code import stream, task
from tests.usual import few

Folder = Callable[..., Path]

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adamw": lambda parameters: AdamW(parameters, lr=0.02, weight_decay=0.1),
    "adam": lambda parameters: Adam(parameters, lr=0.02, weight_decay=0.1),
    "sgd": lambda parameters: SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
}


def own_learner(optimizer: str, *, set_to_none: bool) -> type[ContinualLearner]:
    """Return a subclass like a user's, with its own optimizer and its own way to clear gradients."""

    class Own(ContinualLearner):
        def configure_optimizers(self) -> Any:
            return OPTIMIZERS[optimizer](self.active_bank.parameters())

        def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Optimizer) -> None:
            optimizer.zero_grad(set_to_none=set_to_none)

    return Own


CASES = [
    (optimizer, set_to_none, precision, 1 + number % 2)
    for number, (optimizer, precision, set_to_none) in enumerate(
        itertools.product(OPTIMIZERS, ("fp32", "bf16"), (True, False))
    )
]


@pytest.mark.parametrize(("optimizer", "set_to_none", "precision", "accumulate"), few(CASES, 4))
def test_second_task_leaves_the_first_unchanged(
    backbone_folder: Folder, tmp_path: Path, optimizer: str, set_to_none: bool, precision: str, accumulate: int
) -> None:
    tasks = stream(
        backbone_folder(), [task("one", num_rows=24), task("two", num_rows=24)], training={"precision": precision}
    )
    desk = Desk(tasks, tmp_path, own_learner(optimizer, set_to_none=set_to_none))
    backbone = desk.backbone_digest()
    desk.fit("one", max_epochs=1, accumulate_grad_batches=accumulate)
    logits, digests = desk.logits("one"), desk.digests("one")
    desk.fit("two", accumulate_grad_batches=accumulate, callbacks=[NoForgetting()])
    assert desk.digests("one") == digests
    assert same_bits(desk.logits("one"), logits)
    assert desk.backbone_digest() == backbone
    assert all(not p.requires_grad and p.grad is None for p in desk.learner.bank("one").parameters())
    assert all(not p.requires_grad and p.grad is None for p in desk.backbone.model.parameters())


@pytest.mark.parametrize(
    ("bank", "family"),
    few([("houlsby", "bert"), ("lora", "bert"), ("bitfit", "bert"), ("full", "bert"), ("houlsby", "distilbert")], 2),
)
def test_second_task_leaves_the_first_unchanged_with_default_optimizer(
    backbone_folder: Folder, tmp_path: Path, bank: str, family: str
) -> None:
    two = [task("one", num_rows=24), task("two", num_rows=24)]
    desk = Desk(stream(backbone_folder(family), two, bank=small(bank), training={"weight_decay": 0.1}), tmp_path)
    backbone = desk.backbone_digest()
    start = {name: t.clone() for name, t in desk.learner.add_task(desk.plans["one"]).tensors().items()}
    desk.fit("one", add=False)
    logits, digests = desk.logits("one"), desk.digests("one")
    assert not all(same_bits(t, desk.learner.bank("one").tensors()[name]) for name, t in start.items())
    desk.fit("two")
    assert desk.digests("one") == digests
    assert same_bits(desk.logits("one"), logits)
    assert desk.backbone_digest() == backbone


def test_backbone_dropout_is_off_for_prediction_and_changes_no_other_task(
    backbone_folder: Folder, tmp_path: Path
) -> None:
    two = [task("one"), task("two")]
    desk = Desk(stream(backbone_folder(), two, training={"backbone_dropout": True}), tmp_path)
    desk.fit("one", callbacks=[NoForgetting()])
    logits, digests = desk.logits("one"), desk.digests("one")
    # NoForgetting evaluates the first bank while the backbone's dropout is on for the second.
    desk.fit("two", callbacks=[NoForgetting()])
    assert desk.digests("one") == digests
    assert same_bits(desk.logits("one"), logits)
    assert same_bits(desk.logits("one"), logits)


@pytest.mark.parametrize("which", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
@pytest.mark.parametrize("asked", [True, False])
def test_backbone_dropout_is_on_only_on_request(
    backbone_folder: Folder, tmp_path: Path, which: str, asked: bool
) -> None:
    training = {"backbone_dropout": asked, "head_dropout": 0.0}
    desk = Desk(stream(backbone_folder(), [task("one")], training=training), tmp_path)
    for name, module in desk.backbone.model.named_modules():
        if isinstance(module, torch.nn.Dropout):
            inside_attention = name.endswith("attention.self.dropout")
            module.p = 0.3 if inside_attention == (which == "attention_probs_dropout_prob") else 0.0
    learner = desk.learner
    learner.add_task(desk.plans["one"])
    batch = desk.batch("one")
    assert same_bits(learner(batch), learner(batch)) != asked
    learner.eval()
    assert same_bits(learner(batch), learner(batch))


@pytest.mark.parametrize("name", few(["train", "type", "items", "values", "forward", "a.b", "A.b-c_1", "0"], 3))
def test_any_valid_task_name_works(backbone_folder: Folder, tmp_path: Path, name: str) -> None:
    desk = Desk(stream(backbone_folder(), [task(name), task("other")]), tmp_path)
    desk.fit(name, max_epochs=1)
    digests = desk.digests(name)
    desk.fit("other", max_epochs=1)
    assert desk.digests(name) == digests
    desk.learner.evict(name)
    assert list(desk.learner.plans) == ["other"]


def test_a_users_own_callback_is_called(backbone_folder: Folder, tmp_path: Path) -> None:
    class Count(L.Callback):
        steps = 0

        def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
            self.steps += 1

    desk, count = Desk(stream(backbone_folder(), [task("one")]), tmp_path), Count()
    desk.fit("one", callbacks=[count])
    assert count.steps == 10
