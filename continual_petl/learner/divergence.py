"""A loss that is not a number, or infinite, ends the fit: every later step would only multiply it.

On the CPU each loss is looked at before its gradients are made. On another device looking means to wait for it, so losses
are collected there and looked at together: every twenty steps, and before anything is validated or saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from torch import Tensor
from typing_extensions import override

from continual_petl.errors import DivergedError
from continual_petl.learner.plan import TaskPlan

_TOGETHER = 20
_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class _Step:
    """Where a loss came up; all counted from 1, as people do."""

    loss: Tensor
    number: int
    epoch: int
    batch: int
    index_B: Tensor | None
    """Numbers of the batch's rows, from 0, if it knows them."""

    def __str__(self) -> str:
        where = f"optimizer step {self.number} (epoch {self.epoch}, batch {self.batch}"
        if self.index_B is None:
            return where + ")"
        rows = self.index_B.tolist()
        shown = ", ".join(str(row) for row in rows[:_SHOWN]) + (" and others" if len(rows) > _SHOWN else "")
        return f"{where}, rows {shown} of the training split, counted from 0)"


class StopAtDivergence(L.Callback):
    """Watches the losses of a fit; every `ContinualLearner` brings one along, whoever makes the Trainer.

    Args:
        plan: the task that is learned.

    Raises:
        DivergedError: at the first loss that is not finite, with its step, epoch, batch and rows.
    """

    def __init__(self, plan: TaskPlan) -> None:
        self._plan = plan
        self._index_B: Tensor | None = None
        self._batch = 0
        self._steps: list[_Step] = []

    @override
    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._batch = batch_idx
        self._index_B = batch.get("index") if isinstance(batch, dict) else None

    @override
    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        self._steps.append(
            _Step(
                loss=loss.detach(),
                number=trainer.global_step + 1,
                epoch=trainer.current_epoch + 1,
                batch=self._batch + 1,
                index_B=self._index_B,
            )
        )
        if costs_nothing(loss) or len(self._steps) >= _TOGETHER:
            self._look()

    @override
    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._look()

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._look()

    @override
    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        self._look()

    def _look(self) -> None:
        steps, self._steps = self._steps, []
        if not steps:
            return
        finite = torch.stack([step.loss for step in steps]).isfinite().tolist()
        if all(finite):
            return
        first, training = steps[finite.index(False)], self._plan.training
        raise DivergedError(
            f"task {self._plan.name!r}: learning diverged: the loss is {first.loss.item()} at {first}. Nothing of this task "
            "was committed, and what was learned before is untouched. Lower training.learning_rate (it was "
            f"{training.learning_rate:g}) or training.gradient_clip (it was {training.gradient_clip}), and run again."
        )


def costs_nothing(loss: Tensor) -> bool:
    """Return whether a number can be read without waiting for a device."""
    return loss.device.type == "cpu"
