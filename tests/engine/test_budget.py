"""With a token budget, step counts are exact, and rows that exceed it are refused before training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from continual_petl import InputError, learn
from continual_petl.engine.dry_run import dry_run
from continual_petl.engine.session import Session
from continual_petl.learner import ContinualLearner
from continual_petl.store.store import Store
from continual_petl.streams.stream import TaskStream
from tests.desk import Desk
from tests.learner.test_memory import Fails
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
BUDGET = 60  # tokens: 4 to 8 rows per batch, since rows have 5 to 15 tokens


class Steps(L.Callback):
    """Records the number of tokens of each batch, and the learning rate of each step."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.rates: list[float] = []

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.tokens.append(batch["input_ids"].numel())
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])


def _stream(folder: Folder, **training: Any) -> TaskStream:
    settings = {"max_tokens": BUDGET, "epochs": 3, "batch_size": 8} | training
    return stream(folder(), [task("one", num_rows=40)], training=settings)


@pytest.mark.slow
def test_schedule_and_dry_run_count_the_actual_steps(backbone_folder: Folder, tmp_path: Path) -> None:
    (facts,) = dry_run(Session(_stream(backbone_folder).spec, Store(tmp_path / "dry")))
    steps = Steps()
    run = learn(_stream(backbone_folder), tmp_path / "run", callbacks=[steps])
    assert facts.num_steps == len(steps.tokens) > 3 * 40 / 8
    assert max(steps.tokens) <= BUDGET
    # The rate would be zero in the step after the last. With a wrong number of steps, the last rate would be different.
    assert 0 < steps.rates[-1] == pytest.approx(0.02 / (len(steps.rates) - round(0.1 * len(steps.rates))))
    assert all(check.ok for check in run.verify(data=True))


def test_row_exceeding_the_token_budget_is_reported_before_training(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = _stream(backbone_folder, max_tokens=10)
    message = r"task 'one', train: training\.max_tokens: got 10, but \d+ of 40 rows are longer"
    with pytest.raises(InputError, match=message):
        dry_run(Session(tasks.spec, Store(tmp_path / "dry")))
    with pytest.raises(InputError, match=message):
        learn(tasks, tmp_path / "run")
    assert not Store(tmp_path / "run").tasks


def test_out_of_memory_error_names_the_budget(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(_stream(backbone_folder), tmp_path)
    monkeypatch.setattr(ContinualLearner, "_loss", Fails(None, torch.OutOfMemoryError("out of memory")))
    with pytest.raises(InputError, match=r"Lower training\.batch_size .*, training\.max_tokens \(it is 60\) or"):
        desk.fit("one")
