"""Records the learning curve of a fit: training losses over ranges of equal length, and validation scores of every epoch.

The loss of a range is one mean over all of its rows, tokens or class weights, not a mean of the means of its batches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import lightning as L
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from typing_extensions import override

from continual_petl.callbacks.base import FitCurve
from continual_petl.learner import ContinualLearner
from continual_petl.store.certificate.history import CURVE, Curve, LossPoint, ScorePoint
from continual_petl.store.files.atomic import make_folder, write_json

MAX_LOSSES = 200
"""Maximum number of ranges into which the batches of a fit are divided."""
SECONDS = 5.0
"""Minimum number of seconds between two writes if only losses were added; new scores are written at once."""


class LearningCurve(FitCurve):
    """Record the losses and scores of one fit, even across interruptions, and write them to a file.

    A loss is read from its device only at the end of a range. If several processes share the fit, a loss is the mean over the
    rows of all of them, and the first process writes the file. During the fit, only reports read this file. A resumed fit
    takes its points from the checkpoint, and replaces the file.

    Args:
        folder: the task's progress folder, where `CURVE` is written.
        clock: returns monotonic seconds.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._written = clock()
        self._losses: list[LossPoint] = []
        self._scores: list[ScorePoint] = []
        self._sum: Tensor | float = 0.0
        self._weight = 0.0
        self._count = 0
        self._range = 1

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            "losses": [point.model_dump() for point in self._losses],
            "scores": [point.model_dump() for point in self._scores],
            "sum": float(self._sum),
            "weight": self._weight,
            "count": self._count,
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._losses = [LossPoint.model_validate(point) for point in state_dict["losses"]]
        self._scores = [ScorePoint.model_validate(point) for point in state_dict["scores"]]
        self._count = state_dict["count"]
        if "weight" in state_dict:  # earlier versions summed the means of batches, which are left out
            self._sum, self._weight = state_dict["sum"], state_dict["weight"]

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        batches = trainer.num_training_batches * (trainer.max_epochs or 1)
        if trainer.max_steps > 0:
            batches = trainer.max_steps * trainer.accumulate_grad_batches
        self._range = max(1, math.ceil(batches / MAX_LOSSES)) if math.isfinite(batches) else 1
        if self._losses or self._scores:  # a killed fit may have written points that are newer than the checkpoint
            self._write_so_far(trainer)

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Lightning's `outputs` hold the loss as it is weighted within its optimizer step.
        loss = cast(ContinualLearner, pl_module).last_loss
        assert loss is not None
        if loss.weight:
            self._sum = self._sum + loss.mean.to(_widest(loss.mean.device)) * loss.weight
            self._weight += loss.weight
        self._count += 1
        if self._count == self._range:
            self._note(trainer)
            if self._clock() - self._written >= SECONDS:
                self._write_so_far(trainer)

    @override
    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        logged = {name.removeprefix("val/"): float(v) for name, v in trainer.callback_metrics.items() if "val/" in name}
        scores = {name: value for name, value in logged.items() if math.isfinite(value)}
        self._scores.append(ScorePoint(step=trainer.global_step, epoch=trainer.current_epoch + 1, scores=scores))
        self._write_so_far(trainer)

    @override
    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._count:
            self._note(trainer)
        self._write(trainer)

    @override
    def since(self, num_losses: int, num_scores: int) -> tuple[list[LossPoint], list[ScorePoint]]:
        return self._losses[num_losses:], self._scores[num_scores:]

    @property
    def curve(self) -> Curve:
        """The curve so far."""
        return Curve(losses=tuple(self._losses), scores=tuple(self._scores))

    def _write_so_far(self, trainer: L.Trainer) -> None:
        self._written = self._clock()
        self._write(trainer)

    def _write(self, trainer: L.Trainer) -> None:
        if trainer.is_global_zero:
            make_folder(self._folder)
            write_json(self._folder / CURVE, self.curve.model_dump(mode="json"))

    def _note(self, trainer: L.Trainer) -> None:
        device = trainer.strategy.root_device
        own = torch.tensor([float(self._sum), self._weight], dtype=_widest(device), device=device)
        total, weight = trainer.strategy.reduce(own, reduce_op="sum").tolist()
        loss = total / weight if weight else math.nan
        self._losses.append(LossPoint(step=trainer.global_step, loss=loss if math.isfinite(loss) else None))
        self._sum, self._weight, self._count = 0.0, 0.0, 0


def _widest(device: torch.device) -> torch.dtype:
    """Return the dtype for sums; the MPS backend has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
