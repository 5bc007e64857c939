"""Stops a fit whose loss is not finite, before anything is validated or saved.

On the CPU each loss is checked before its gradients are computed. On other devices every check would have to wait for the
device, so losses are collected and checked together: every twenty steps, and before each validation and checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from continual_petl.errors import DivergedError
from continual_petl.learner.task_plan import TaskPlan

_TOGETHER = 20
_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class _Step:
    """Where a loss was computed; all numbers are 1-based."""

    loss: Tensor
    number: int
    epoch: int
    batch: int
    index_B: Tensor | None
    """Indices of the batch's rows, 0-based, if known."""

    def __str__(self) -> str:
        where = f"optimizer step {self.number} (epoch {self.epoch}, batch {self.batch}"
        if self.index_B is None:
            return where + ")"
        rows = self.index_B.tolist()
        shown = ", ".join(str(row) for row in rows[:_SHOWN]) + (" and others" if len(rows) > _SHOWN else "")
        return f"{where}, rows {shown} of the training split, 0-based)"


class LossWatch:
    """Checks the losses of a fit; see `LearnerGuards`.

    Args:
        plan: the task being learned.
    """

    def __init__(self, plan: TaskPlan) -> None:
        self._plan = plan
        self._index_B: Tensor | None = None
        self._batch = 0
        self._steps: list[_Step] = []

    def begin(self, batch: Any, batch_idx: int) -> None:
        """Record the rows of the next loss."""
        self._batch = batch_idx
        self._index_B = batch.get("index") if isinstance(batch, dict) else None

    def add(self, loss: Tensor, *, step: int, epoch: int) -> None:
        """Add a loss; check all losses if that costs nothing, or if enough have been collected.

        Args:
            loss: mean loss of a batch.
            step: number of optimizer steps before this one.
            epoch: 0-based.
        """
        self._steps.append(
            _Step(loss=loss.detach(), number=step + 1, epoch=epoch + 1, batch=self._batch + 1, index_B=self._index_B)
        )
        if costs_nothing(loss) or len(self._steps) >= _TOGETHER:
            self.check()

    def check(self) -> None:
        """Raise `DivergedError` at the first collected loss that is not finite, with its step, epoch, batch and rows."""
        steps, self._steps = self._steps, []
        if not steps:
            return
        finite = torch.stack([step.loss for step in steps]).isfinite().tolist()
        if all(finite):
            return
        first, training = steps[finite.index(False)], self._plan.training
        raise DivergedError(
            f"task {self._plan.name!r}: learning diverged: the loss is {first.loss.item()} at {first}. Nothing from this "
            "task was committed, and earlier tasks are unchanged. Lower training.learning_rate (it was "
            f"{training.learning_rate:g}) or training.gradient_clip (it was {training.gradient_clip}), and run "
            "again with --discard-progress (in Python: discard_progress=True), since what is saved has the old settings."
        )


def costs_nothing(loss: Tensor) -> bool:
    """Return whether a loss can be read without waiting for a device."""
    return loss.device.type == "cpu"
