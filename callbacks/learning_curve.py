"""Note how a fit goes: the training loss over stretches of equal length, and the validation scores of every epoch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from typing_extensions import override

from continual_petl.callbacks.base import StreamCallback
from continual_petl.store.atomic import make_folder, write_json
from continual_petl.store.history import Curve, LossPoint, ScorePoint

CURVE = "curve.json"
MOST_LOSSES = 200
"""Stretches that the batches of a fit are divided into."""


class LearningCurve(StreamCallback):
    """Note the losses and scores of one fit, also across interruptions, and write them down at its end.

    A loss is read from its device only at the end of a stretch. Where several processes share the fit, losses are means over
    them, and the first one writes.

    Args:
        folder: where the task keeps its progress; the curve becomes `CURVE` in it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._losses: list[dict[str, float | None]] = []
        self._scores: list[dict[str, Any]] = []
        self._sum: Tensor | float = 0.0
        self._count = 0
        self._stretch = 1

    @staticmethod
    def of(trainer: L.Trainer) -> LearningCurve | None:
        """Return the one that watches a Trainer of a course; None where there is none."""
        found: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]  # Lightning sets it from outside
        return next((each for each in found if isinstance(each, LearningCurve)), None)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            "losses": list(self._losses),
            "scores": list(self._scores),
            "sum": float(self._sum),
            "count": self._count,
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._losses, self._scores = list(state_dict["losses"]), list(state_dict["scores"])
        self._sum, self._count = state_dict["sum"], state_dict["count"]

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        batches = trainer.num_training_batches * (trainer.max_epochs or 1)
        self._stretch = max(1, math.ceil(batches / MOST_LOSSES)) if math.isfinite(batches) else 1

    @override
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Where gradients are accumulated, Lightning hands out the loss divided by the number of batches.
        loss = outputs["loss"].detach()
        loss = loss.to(_widest(loss.device)) * trainer.accumulate_grad_batches
        self._sum, self._count = self._sum + loss, self._count + 1
        if self._count == self._stretch:
            self._note(trainer)

    @override
    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != TrainerFn.FITTING:
            return
        found = {name.removeprefix("val/"): float(v) for name, v in trainer.callback_metrics.items() if "val/" in name}
        scores = {name: value for name, value in found.items() if math.isfinite(value)}
        self._scores.append({"step": trainer.global_step, "epoch": trainer.current_epoch + 1, "scores": scores})

    @override
    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._count:
            self._note(trainer)
        if trainer.is_global_zero:
            make_folder(self._folder)
            write_json(self._folder / CURVE, self.curve.model_dump(mode="json"))

    def since(self, num_losses: int, num_scores: int) -> tuple[list[LossPoint], list[ScorePoint]]:
        """Return the points that joined after the first so many."""
        losses, scores = self._losses[num_losses:], self._scores[num_scores:]
        return [LossPoint.model_validate(each) for each in losses], [ScorePoint.model_validate(each) for each in scores]

    @property
    def curve(self) -> Curve:
        """What was noted so far."""
        return Curve(
            losses=tuple(LossPoint.model_validate(point) for point in self._losses),
            scores=tuple(ScorePoint.model_validate(point) for point in self._scores),
        )

    def _note(self, trainer: L.Trainer) -> None:
        device = trainer.strategy.root_device
        mean = torch.as_tensor(self._sum, dtype=_widest(device), device=device) / self._count
        mean = trainer.strategy.reduce(mean, reduce_op="mean")
        loss = float(mean)
        self._losses.append({"step": trainer.global_step, "loss": loss if math.isfinite(loss) else None})
        self._sum, self._count = 0.0, 0


def _widest(device: torch.device) -> torch.dtype:
    """Return what sums are kept in: Apple's devices have nothing wider than float32."""
    return torch.float32 if device.type == "mps" else torch.float64
