"""A logger that records what it receives, and a run to log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers import Logger

from continual_petl.streams.stream import TaskStream
from tests.streams_in_code import stream, task

NAMES = ("one", "two", "three")


class Recording(Logger):
    """Records steps and values, and fails on request.

    Args:
        fails_at: index of the first call that fails, from 0; all later calls fail too. With None, no call fails.
    """

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.fails_at = fails_at
        self.ended: list[str] = []
        self.settings: dict[str, Any] = {}

    @property
    def name(self) -> str:
        return "recording"

    @property
    def version(self) -> str:
        return "0"

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        self.settings |= params

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if self.fails_at is not None and len(self.rows) >= self.fails_at:
            raise OSError(28, "No space left on device")
        assert step is not None
        self.rows.append((step, dict(metrics)))

    def finalize(self, status: str) -> None:
        self.ended.append(status)

    @property
    def steps(self) -> list[int]:
        """The step of every logged row."""
        return [step for step, _ in self.rows]

    def points(self, name: str) -> list[tuple[int, float]]:
        """Return the steps and values that were logged under one name."""
        return [(step, row[name]) for step, row in self.rows if name in row]


class StopAt(L.Callback):
    """Raise KeyboardInterrupt in the fit after a given number of steps."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == self._step:
            raise KeyboardInterrupt


def tasks_of(backbone: Path, *names: str, **training: Any) -> TaskStream:
    """Return a stream of tasks with 4 steps each: 2 epochs of 2 steps."""
    made = [task(name, num_rows=16) for name in names or NAMES]
    return stream(backbone, made, training={"epochs": 2, "checkpoint_every": 1} | training)
