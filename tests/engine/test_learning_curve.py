"""The learning curve of a fit is on disk during the fit, and a resumed task has one consistent curve."""

from __future__ import annotations

import errno
import itertools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest

from continual_petl import Interrupted, Run, StoreError, learn
from continual_petl.engine.task import learning_curve
from continual_petl.engine.task.checkpoint import LAST
from continual_petl.learner.learner import BatchLoss
from continual_petl.store.certificate.history import CURVE, Curve, read_curve
from continual_petl.store.files import atomic
from continual_petl.streams.stream import TaskStream
from tests.engine.test_resume import SignalAt
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]


class Looking(L.Callback):
    """Record the curve on disk at the start of each batch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.seen: list[Curve | None] = []

    def on_train_batch_start(self, *args: Any) -> None:
        self.seen.append(read_curve(self._folder))


def tasks_of(backbone: Path) -> TaskStream:
    training = {"batch_size": 5, "epochs": 3, "checkpoint_every": 2}
    return stream(backbone, [task("one", num_rows=24)], training=training)


@pytest.fixture
def progress(tmp_path: Path) -> Path:
    return tmp_path / "run" / ".progress" / "one"


def test_curve_is_written_after_each_validation(backbone_folder: Folder, tmp_path: Path, progress: Path) -> None:
    looking = Looking(progress)
    run = learn(tasks_of(backbone_folder()), tmp_path / "run", callbacks=[looking])
    assert looking.seen[:5] == [None] * 5, "the first epoch is shorter than the interval between two writes"
    first, second = looking.seen[5], looking.seen[10]
    assert first is not None
    assert second is not None
    assert [point.step for point in first.losses] == [1, 2, 3, 4, 5]
    assert [point.epoch for point in second.scores] == [1, 2]
    history = run.store.history("one")
    assert history is not None
    assert history.curve.losses[:5] == first.losses
    assert not progress.exists()


@pytest.mark.parametrize(("seconds", "writes"), [(1.0, 15), (2.0, 7), (1e9, 0)])
def test_losses_are_written_at_most_every_few_seconds(
    tmp_path: Path, seconds: float, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning_curve, "SECONDS", seconds)
    written: list[str] = []
    monkeypatch.setattr(learning_curve, "write_json", lambda path, value: written.append(path.name))
    curve = learning_curve.LearningCurve(tmp_path, clock=itertools.count().__next__)
    trainer: Any = _Trainer()
    for _ in range(15):
        curve.on_train_batch_end(trainer, trainer, {}, None, 0)
    assert len(written) == writes


@pytest.mark.slow
@pytest.mark.parametrize("at", [7, 12])
def test_resumed_task_replaces_points_after_its_checkpoint(
    backbone_folder: Folder, tmp_path: Path, progress: Path, at: int
) -> None:
    learn(tasks_of(backbone_folder()), tmp_path / "whole")
    with pytest.raises(Interrupted):
        learn(tasks_of(backbone_folder()), tmp_path / "run", callbacks=[SignalAt(at, signal.SIGTERM)])
    points = [{"step": step, "loss": 0.5} for step in range(1, 100)]  # as if killed long after the checkpoint
    atomic.write_json(progress / CURVE, {"losses": points, "scores": []})
    looking = Looking(progress)
    run = learn(tasks_of(backbone_folder()), tmp_path / "run", callbacks=[looking])
    first = looking.seen[0]
    assert first is not None
    assert [point.step for point in first.losses] == list(range(1, at + 2))
    assert run.store.history("one") == Run(tmp_path / "whole").store.history("one")


def test_restarted_task_starts_with_an_empty_curve(backbone_folder: Folder, tmp_path: Path, progress: Path) -> None:
    with pytest.raises(Interrupted):
        learn(tasks_of(backbone_folder()), tmp_path / "run", callbacks=[SignalAt(7)])
    assert read_curve(progress) is not None
    (progress / LAST).unlink()
    looking = Looking(progress)
    learn(tasks_of(backbone_folder()), tmp_path / "run", callbacks=[looking])
    assert looking.seen[0] is None


@pytest.mark.slow
def test_unwritable_curve_stops_the_fit(
    backbone_folder: Folder, tmp_path: Path, progress: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, value: Any) -> None:
        raise StoreError("no space") from OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(learning_curve, "write_json", refused)
        with pytest.raises(StoreError, match="no space"):
            learn(tasks_of(backbone_folder()), tmp_path / "run")
    history = learn(tasks_of(backbone_folder()), tmp_path / "run").store.history("one")
    assert history is not None
    assert len(history.curve.losses) == 15


def test_only_the_first_process_writes(tmp_path: Path) -> None:
    for first in (False, True):
        trainer: Any = _Trainer()
        trainer.is_global_zero = first
        curve = learning_curve.LearningCurve(tmp_path / "one")
        curve.on_fit_end(trainer, trainer)
        assert (tmp_path / "one" / CURVE).exists() is first


class _Trainer:
    """Just enough of a Trainer to record a loss."""

    import torch

    last_loss = BatchLoss(torch.tensor(0.5), 5.0)
    accumulate_grad_batches, global_step, is_global_zero = 1, 0, True
    strategy = property(lambda self: self)
    root_device = torch.device("cpu")

    def reduce(self, value: Any, reduce_op: str) -> Any:
        return value
