"""A step with accumulated gradients is the step of one batch with all rows of its window, for every kind of task.

The reference is torch's own loss of all rows of a window in one batch, with torch's own gradients. Everything is computed in
float64; sums over batches are rounded differently from sums over one batch.

Shape suffixes: B rows, C labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader

from continual_petl import ContinualLearner, InputError, learn, load_backbone
from continual_petl.banks.bank import Bank
from continual_petl.engine.task import learning_curve
from continual_petl.learner.windows import Windows
from continual_petl.streams.batches.collate import collate
from continual_petl.streams.batches.datamodule import TaskDataModule
from continual_petl.streams.batches.loaders import Share, TrainLoader
from tests.chats import PLAIN, chat_backbone
from tests.desk import SILENT
from tests.engine.test_chats import talk
from tests.streams_in_code import stream, task, task_of_kind

Folder = Callable[..., Path]
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    # name: kind, family of the backbone, training settings
    "classification": ("classification", "bert", {}),
    "weights and smoothing": ("classification", "bert", {"class_weights": {"yes": 3.7}, "label_smoothing": 0.2}),
    "smoothing": ("classification", "bert", {"label_smoothing": 0.2}),
    "regression": ("regression", "bert", {}),
    "multilabel": ("multilabel", "bert", {"class_weights": {"x": 2.5, "z": 0.4}}),
    "token-classification": ("token-classification", "bert", {}),
    "weighted tags": ("token-classification", "bert", {"class_weights": {"O": 0.3}, "label_smoothing": 0.1}),
    "seq2seq": ("seq2seq", "bart", {"label_smoothing": 0.1}),
    "causal-lm": ("causal-lm", "gpt2", {}),
    "packed": ("causal-lm", "gpt2", {"packing": True}),
    "tokens": ("causal-lm", "gpt2", {"max_tokens": 40, "label_smoothing": 0.1}),
    "image-classification": ("image-classification", "vit", {"class_weights": {"dark": 5.0}}),
    "multiple-choice": ("multiple-choice", "bert", {}),
    "question-answering": ("question-answering", "bert", {}),
}


def one_loss(learner: ContinualLearner, batch: dict[str, Tensor]) -> Tensor:
    """Return the loss of one batch as torch defines it, with the bank's penalty."""
    plan, outputs, labels, penalty = learner.plan, learner(batch), batch["labels"], learner.active_bank.penalty()
    weights = None if plan.class_weights is None else torch.tensor(plan.class_weights).double()
    if plan.kind == "regression":
        assert plan.targets is not None
        loss = F.mse_loss(outputs[:, 0], (labels.double() - plan.targets.mean) / plan.targets.deviation)
    elif plan.kind == "multilabel":
        loss = F.binary_cross_entropy_with_logits(outputs, labels.double(), pos_weight=weights)
    elif plan.kind == "question-answering":
        there = labels[..., 0] >= 0
        loss = sum(F.cross_entropy(outputs[there][..., n], labels[there][..., n]) for n in (0, 1)) / 2  # type: ignore[assignment]
    else:
        if plan.kind == "causal-lm":
            outputs, labels = outputs[:, :-1], labels[:, 1:]
        smoothing = plan.training.label_smoothing
        loss = F.cross_entropy(outputs.flatten(0, -2), labels.flatten(), weight=weights, label_smoothing=smoothing)
        loss = loss if (labels != -100).any() else (outputs * 0).sum()
    return loss if penalty is None else loss + penalty


class Steps(L.Callback):
    """Compare the gradients of every step with those of one batch with the rows of its window."""

    def __init__(self, data: TaskDataModule, pad_token_id: int) -> None:
        self.rows, self.kind, self.pad = data.data.train, data.data.task.kind, pad_token_id
        self.window: list[int] = []
        self.sizes: list[int] = []
        self.losses: list[float] = []
        self.scales: list[float] = []
        """The largest gradient of each step."""

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.window += batch["index"].tolist()
        self.sizes.append(len(batch["index"]))

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: Any, optimizer: Any) -> None:
        found = [None if p.grad is None else p.grad.clone() for p in pl_module.active_bank.parameters()]
        batch = collate(self.rows, self.window, self.pad, self.kind)
        loss = one_loss(pl_module, batch)
        expected = torch.autograd.grad(loss, list(pl_module.active_bank.parameters()), allow_unused=True)
        scale = max(float(each.abs().max()) for each in expected if each is not None)
        for one, other in zip(found, expected, strict=True):
            if other is not None:
                torch.testing.assert_close(one, other, atol=1e-9 * scale, rtol=1e-9)
        self.losses.append(float(loss.detach()))
        self.scales.append(scale)
        self.window = []


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute everything in float64, also what heads otherwise compute in float32."""
    monkeypatch.setattr(Tensor, "float", Tensor.double)


def in_double(data: TaskDataModule) -> TaskDataModule:
    """Make a module's labels float64, if they are numbers."""
    data.on_before_batch_transfer = lambda batch, dataloader_idx: {  # type: ignore[method-assign]
        name: t.double() if t.is_floating_point() else t for name, t in batch.items()
    }
    return data


def prepared(backbone: Path, tasks: list[dict[str, Any]], **training: Any) -> tuple[ContinualLearner, TaskDataModule]:
    """Return a learner in float64 whose first task is about to be learned, and its data."""
    settings = {"head_dropout": 0.0, "optimizer": "sgd", "schedule": "constant"} | training
    limit = None if tasks[0]["kind"] == "image-classification" else 48
    learner = ContinualLearner(load_backbone(str(backbone), precision="fp32", pooling="mean", max_length=limit))
    more = {"backbone": {"name": str(backbone), "pooling": "mean", "max_length": limit}}
    data = in_double(learner.begin(stream(backbone, tasks, training=settings, **more), tasks[0]["name"]))
    return learner.double(), data


def fit(learner: ContinualLearner, data: TaskDataModule, every: int, **arguments: Any) -> Steps:
    """Train a task with your own Trainer, and compare every step."""
    steps = Steps(data, data._pad_token_id)
    limits: dict[str, Any] = {"max_epochs": 2, "limit_val_batches": 0, "accumulate_grad_batches": every} | arguments
    L.Trainer(**SILENT, **limits, callbacks=[steps]).fit(learner, datamodule=data)
    assert not steps.window
    return steps


def windows(num_examples: int = 0) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that runs a test with uneven sizes, and with this many random ones, the same ones every time."""
    setting = settings(
        max_examples=num_examples or 1,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate] if num_examples else [Phase.explicit],
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    sizes = given(num_rows=st.integers(8, 19), batch_size=st.integers(1, 5), every=st.integers(2, 6))
    uneven = example(num_rows=11, batch_size=3, every=3)
    return lambda test: setting(uneven(sizes(test)))


def check(backbone_folder: Folder, case: str, num_rows: int, batch_size: int, every: int) -> None:
    kind, family, training = CASES[case]
    tasks = [task_of_kind(kind, "one", num_rows=num_rows)]
    steps = fit(*prepared(backbone_folder(family), tasks, **training, batch_size=batch_size), every)
    assert len(steps.losses) == 2 * math.ceil(len(steps.sizes) / 2 / every)
    assert min(steps.scales) > 0


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("in_float64")
@windows()
def test_a_step_is_that_of_one_batch(
    backbone_folder: Folder, case: str, num_rows: int, batch_size: int, every: int
) -> None:
    check(backbone_folder, case, num_rows, batch_size, every)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("in_float64")
@windows(25)
def test_a_step_is_that_of_one_batch_many_examples(
    backbone_folder: Folder, case: str, num_rows: int, batch_size: int, every: int
) -> None:
    check(backbone_folder, case, num_rows, batch_size, every)


@pytest.mark.parametrize("loss_on", ["response", "last", "all"])
@pytest.mark.usefixtures("in_float64")
def test_a_step_on_conversations_is_that_of_one_batch(tmp_path: Path, loss_on: str) -> None:
    backbone = chat_backbone(tmp_path / "llama", PLAIN)
    steps = fit(*prepared(backbone, [talk(chat={"loss_on": loss_on})], batch_size=3), 3)
    assert min(steps.scales) > 0


@pytest.mark.usefixtures("in_float64")
def test_an_epoch_cut_short_ends_with_a_smaller_window(backbone_folder: Folder) -> None:
    tasks = [task_of_kind("causal-lm", "one", num_rows=20)]
    steps = fit(*prepared(backbone_folder("gpt2"), tasks, batch_size=3), 3, limit_train_batches=4)
    assert steps.sizes == [3] * 8
    assert len(steps.losses) == 4


@pytest.mark.usefixtures("in_float64")
def test_a_penalty_counts_once_in_a_step(backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bank, "penalty", lambda bank: sum(parameter.square().sum() for parameter in bank.parameters()))
    fit(*prepared(backbone_folder(), [task("one", num_rows=11)], batch_size=2), 4)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.usefixtures("in_float64")
def test_a_batch_without_labels_contributes_nothing(backbone_folder: Folder, every: int) -> None:
    learner, data = prepared(backbone_folder(), [task_of_kind("token-classification", "one", num_rows=9)], batch_size=1)
    rows = data.data.train
    assert rows.labels is not None
    labels = rows.labels.copy()
    labels[: rows.offsets[4]] = -100
    data.data = replace(data.data, train=replace(rows, labels=labels))
    steps = fit(learner, data, every)
    assert steps.scales.count(0.0) == (8 if every == 1 else 0)


@given(
    num_rows=st.integers(8, 19), batch_size=st.integers(1, 4), every=st.integers(1, 3), num_processes=st.integers(2, 3)
)
@settings(max_examples=4, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("case", ["weights and smoothing", "weighted tags", "packed"])
@pytest.mark.usefixtures("in_float64")
def test_a_step_of_several_processes_is_that_of_one_batch(
    backbone_folder: Folder, case: str, num_rows: int, batch_size: int, every: int, num_processes: int
) -> None:
    kind, family, training = CASES[case]
    tasks = [task_of_kind(kind, "one", num_rows=num_rows)]
    learner, data = prepared(backbone_folder(family), tasks, **training, batch_size=batch_size)
    parameters = list(learner.active_bank.parameters())
    found: dict[int, list[Tensor]] = {}
    indices: dict[int, list[int]] = {}
    for rank in range(num_processes):
        loader = TrainLoader(
            data.data.train, data._order, 0, kind=data.data.task.kind, share=Share(rank, num_processes)
        )
        trainer = trainer_of(loader, every, num_processes)
        parts = Windows(learner.plan)
        for number, batch in enumerate(loader):
            part = parts.part(trainer, number)
            gradients = torch.autograd.grad(learner._loss_of(batch), parameters, allow_unused=True)
            # As Lightning and DDP do.
            scaled = [torch.zeros(()) if g is None else g * part.factor / every / num_processes for g in gradients]
            step = number // every
            before = found.get(step, [torch.zeros(())] * len(scaled))
            found[step] = [one + other for one, other in zip(before, scaled, strict=True)]
            if part.weight:
                indices.setdefault(step, []).extend(batch["index"].tolist())
    assert sorted(row for rows in indices.values() for row in rows) == list(range(num_rows)), "a row counts twice"
    for step, rows in indices.items():
        loss = one_loss(learner, collate(data.data.train, rows, 0, data.data.task.kind))
        expected = torch.autograd.grad(loss, parameters, allow_unused=True)
        for one, other in zip(found[step], expected, strict=True):
            if other is not None:
                torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


def trainer_of(loader: Any, every: int, num_processes: int = 1, *, accumulates: bool = False) -> L.Trainer:
    """Return what `Windows` reads of a Trainer."""
    return cast(
        L.Trainer,
        SimpleNamespace(
            accumulate_grad_batches=every,
            train_dataloader=loader,
            num_training_batches=len(loader),
            world_size=num_processes,
            strategy=SimpleNamespace(handles_gradient_accumulation=accumulates),
        ),
    )


def test_equal_batches_keep_their_bits(backbone_folder: Folder) -> None:
    learner, data = prepared(backbone_folder(), [task("one", num_rows=18)], batch_size=3, class_weights=None)
    for every in (1, 2, 3, 6):
        parts, trainer = Windows(learner.plan), trainer_of(loader := data.train_dataloader(), every)
        assert [parts.part(trainer, number).factor for number, _ in enumerate(loader)] == [1.0] * 6


@pytest.mark.parametrize(
    ("every", "num_processes", "why"), [(3, 1, "accumulate_grad_batches is 3"), (1, 2, "2 processes")]
)
def test_other_loaders_cannot_be_accumulated(backbone_folder: Folder, every: int, num_processes: int, why: str) -> None:
    learner, data = prepared(backbone_folder(), [task("one", num_rows=10)], batch_size=3)
    batches = list(data.train_dataloader())
    other: Any = DataLoader(cast(Any, batches), batch_size=None)
    assert Windows(learner.plan).part(trainer_of(other, 1), 2) == (1.0, 1.0)
    with pytest.raises(
        InputError,
        match=rf"task 'one': {why}.*a loader of type DataLoader .* use the loaders of ContinualLearner.begin",
    ):
        Windows(learner.plan).part(trainer_of(other, every, num_processes), 0)


def test_strategies_that_accumulate_by_themselves_are_refused(backbone_folder: Folder) -> None:
    learner, data = prepared(backbone_folder(), [task("one", num_rows=10)], batch_size=3)
    loader = data.train_dataloader()
    assert Windows(learner.plan).part(trainer_of(loader, 1, accumulates=True), 0).factor == 1.0
    with pytest.raises(InputError, match=r"accumulates gradients by itself.*use another strategy"):
        Windows(learner.plan).part(trainer_of(loader, 2, accumulates=True), 0)


def test_a_checkpoint_between_two_steps_cannot_be_resumed(backbone_folder: Folder, tmp_path: Path) -> None:
    class Save(L.Callback):
        def on_train_batch_end(
            self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            if trainer.current_epoch == 0:
                trainer.save_checkpoint(tmp_path / f"{batch_idx}.ckpt")

    def trained(path: Path | None) -> list[Tensor]:
        tasks = stream(backbone_folder(), [task("one", num_rows=20)], training={"batch_size": 3, "head_dropout": 0.0})
        learner = ContinualLearner(load_backbone(str(backbone_folder()), precision="fp32", pooling="mean"))
        data = learner.begin(tasks, "one")
        trainer = L.Trainer(**SILENT, max_epochs=1, accumulate_grad_batches=3, callbacks=[] if path else [Save()])
        trainer.fit(learner, datamodule=data, ckpt_path=path, weights_only=True)
        return list(learner.active_bank.tensors().values())

    whole = trained(None)
    assert all(map(torch.equal, whole, trained(tmp_path / "2.ckpt")))
    with pytest.raises(
        InputError, match=r"saved after batch 4 of an epoch, between two optimizer steps .*last 1 batches"
    ):
        trained(tmp_path / "3.ckpt")


@pytest.mark.parametrize(("batch_size", "every"), [(2, 4), (4, 2), (1, 100), (5, 3)])
def test_a_run_learns_the_bank_of_the_large_batch(
    backbone_folder: Folder, tmp_path: Path, batch_size: int, every: int
) -> None:
    banks = []
    for number, sizes in enumerate(({"batch_size": 6}, {"batch_size": batch_size, "accumulate": every})):
        training = {
            "optimizer": "sgd",
            "momentum": 0.0,
            "weight_decay": 0.0,
            "epochs": 2,
            "head_dropout": 0.0,
            "select": "last",
        }
        more = {"schedule": "constant", "warmup": 0.0, "learning_rate": 0.1, "gradient_clip": None}
        run = learn(
            stream(backbone_folder(), [task("one", num_rows=6)], training=training | more | sizes),
            tmp_path / str(number),
        )
        banks.append(run.store.tensors("one"))
        assert run.store.history("one").curve.losses[-1].step == 2
    for name, tensor in banks[0].items():
        # float32: sums over batches are rounded differently
        torch.testing.assert_close(banks[1][name], tensor, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.usefixtures("in_float64")
def test_recorded_losses_are_means_over_all_tokens(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    monkeypatch.setattr(learning_curve, "MAX_LOSSES", 1)
    learner, data = prepared(backbone_folder("gpt2"), [task_of_kind("causal-lm", "one", num_rows=13)], batch_size=3)
    curve = learning_curve.LearningCurve(tmp_path)
    expected = float(one_loss(learner, collate(data.data.train, range(13), data._pad_token_id, "causal-lm")).detach())
    monkeypatch.setattr(
        ContinualLearner, "configure_optimizers", lambda self: torch.optim.SGD(self.active_bank.parameters(), 0.0)
    )
    limits: dict[str, Any] = {"max_epochs": 1, "limit_val_batches": 0, "accumulate_grad_batches": every}
    L.Trainer(**SILENT, **limits, callbacks=[curve]).fit(learner, datamodule=data)
    assert [point.loss for point in curve.curve.losses] == pytest.approx([expected], rel=1e-12)
