"""A loss that is not finite stops the task at once, says where, and leaves everything else unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor

from continual_petl import ContinualLearner, InputError, learn
from continual_petl.learner import guards
from continual_petl.learner.guards import LossWatch
from continual_petl.streams.stream import TaskStream
from tests.desk import Desk, bank_digests
from tests.engine.faulty_disk import content
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
TASKS = [task("one", num_rows=20), task("two", num_rows=20)]
# 20 rows in batches of 5: four batches an epoch.
TRAINING = {"batch_size": 5, "epochs": 3, "checkpoint_every": 1}


def tasks_of(backbone: Path, **training: Any) -> TaskStream:
    return stream(backbone, TASKS, training={**TRAINING, **training})


@pytest.fixture(params=["at once", "together"])
def _looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "together":  # as on a GPU, where reading a loss means waiting
        monkeypatch.setattr(guards, "costs_nothing", lambda loss: False)


def spoil(monkeypatch: pytest.MonkeyPatch, value: float, batch: int, name: str = "two") -> list[list[int]]:
    """Multiply the loss of a task's n-th training batch by ``value``; return the row numbers of all batches so far."""
    real, seen = ContinualLearner._loss, []

    def loss(learner: ContinualLearner, outputs: Tensor, rows: dict[str, Tensor]) -> Tensor:
        found = real(learner, outputs, rows)
        if learner.plan.name != name:
            return found
        seen.append(rows["index"].tolist())
        return found * value if len(seen) == batch else found

    monkeypatch.setattr(ContinualLearner, "_loss", loss)
    return seen


@pytest.mark.usefixtures("_looks")
@pytest.mark.parametrize(
    ("batch", "value"),
    [
        (7, torch.inf),
        pytest.param(1, torch.nan, marks=pytest.mark.slow),
        pytest.param(12, torch.nan, marks=pytest.mark.slow),
    ],
)
def test_divergence_error_names_step_epoch_batch_and_rows(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int, value: float
) -> None:
    """Tested with a custom Trainer."""
    desk = Desk(tasks_of(backbone_folder()), tmp_path)
    seen = spoil(monkeypatch, value, batch)
    with pytest.raises(InputError) as told:
        desk.fit("two", max_epochs=3)
    rows = ", ".join(map(str, seen[batch - 1]))
    assert (
        f"task 'two': learning diverged: the loss is {value} at optimizer step {batch} (epoch {(batch + 3) // 4}, batch "
        f"{(batch - 1) % 4 + 1}, rows {rows} of those that are learned from, 0-based, after rows were held out)."
        in str(told.value)
    )


def test_divergence_error_with_gradient_accumulation(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tasks_of(backbone_folder()), tmp_path)
    spoil(monkeypatch, torch.nan, 7)
    with pytest.raises(InputError, match=r"at optimizer step 4 \(epoch 2, batch 3, rows"):
        desk.fit("two", accumulate_grad_batches=2)


def test_device_losses_are_checked_in_groups(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    real = LossWatch.check

    def look(watch: LossWatch) -> None:
        looks.append(len(watch._steps))
        real(watch)

    monkeypatch.setattr(guards, "costs_nothing", lambda loss: False)
    monkeypatch.setattr(LossWatch, "check", look)
    tasks = stream(backbone_folder(), [task("one", num_rows=50)], training={"batch_size": 2})
    Desk(tasks, tmp_path).fit("one", max_epochs=1)
    assert [look for look in looks if look] == [20, 5], (
        "losses must be checked after every 20 steps and before validation"
    )


def test_cpu_losses_are_checked_before_the_next_batch(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tasks_of(backbone_folder()), tmp_path)
    seen = spoil(monkeypatch, torch.nan, 2)
    with pytest.raises(InputError, match="learning diverged"):
        desk.fit("two")
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("arguments", "batches"), [({"limit_val_batches": 0}, 4), ({"val_check_interval": 2}, 2), ({}, 1)]
)
def test_device_losses_are_checked_before_validation_and_saving(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], batches: int
) -> None:
    class Save(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
            trainer.save_checkpoint(tmp_path / "mine.ckpt")

    monkeypatch.setattr(guards, "costs_nothing", lambda loss: False)
    desk = Desk(tasks_of(backbone_folder()), tmp_path)
    seen = spoil(monkeypatch, torch.nan, 1)
    with pytest.raises(InputError, match=r"learning diverged: the loss is nan at optimizer step 1 "):
        desk.fit("two", max_epochs=1, callbacks=[] if arguments else [Save()], **arguments)
    assert len(seen) == batches
    assert not (tmp_path / "mine.ckpt").exists()


def test_non_finite_bank_is_not_committed(backbone_folder: Folder, tmp_path: Path) -> None:
    """The last step may make the bank non-finite after the last loss was finite."""

    class Spoil(L.Callback):
        def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            assert isinstance(pl_module, ContinualLearner)
            pl_module.active_bank.head.get_parameter("output.bias").data[0] = torch.nan

    with pytest.raises(
        InputError, match=r"task 'one': learning diverged: 1 of .* no longer finite \(the first is head\.output"
    ):
        learn(tasks_of(backbone_folder(), select="last"), tmp_path, callbacks=[Spoil()])
    assert not (tmp_path / "banks" / "one").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("_looks")
def test_diverged_run_continues_with_another_learning_rate(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        seen = spoil(patch, torch.nan, 7)
        with pytest.raises(InputError, match=r"learning diverged: .* earlier tasks are unchanged"):
            learn(tasks_of(backbone_folder()), tmp_path / "run")
        assert len(seen) <= 8, "training must stop in the epoch in which it diverged"
    before = content(tmp_path / "run")
    assert {name.split("/")[1] for name in before if name.startswith("banks/")} == {"one"}
    # The saved progress is finite, so it can be resumed with the same settings once the cause is removed.
    last = torch.load(tmp_path / "run" / ".progress" / "two" / "last.ckpt", weights_only=True)
    assert last["global_step"] <= 6
    assert all(tensor.isfinite().all() for tensor in last["state_dict"].values())
    run = learn(tasks_of(backbone_folder(), learning_rate=0.001), tmp_path / "run", discard_progress=True)
    after = content(tmp_path / "run")
    assert {name: after[name] for name in before if "one" in name} == {n: b for n, b in before.items() if "one" in n}
    whole = learn(tasks_of(backbone_folder(), learning_rate=0.001), tmp_path / "whole")
    assert bank_digests(run)["two"] == bank_digests(whole)["two"]
