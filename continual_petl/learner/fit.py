"""What a learner knows about the training of a bank with one's own Trainer; the bank's certificate records it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import lightning as L
from lightning.pytorch.utilities import GradClipAlgorithmType

from continual_petl.streams.batches.datamodule import TaskDataModule
from continual_petl.streams.stream import TaskStream


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The training of one bank, from `ContinualLearner.begin` to the end of the last fit."""

    stream: TaskStream
    """The stream that the task belongs to."""
    parents: Mapping[str, str]
    """Digests of the banks that the bank started from or reads, by task, as they were when the task began."""
    ended: bool = False
    """Whether the last fit has ended, rather than being stopped."""
    steps: int = 0
    """Optimizer steps of all fits."""
    epochs: int = 0
    accumulate: int = 1
    gradient_clip: float | None = None
    """Maximum norm of the gradient; None if the Trainer did not limit it."""
    precision: str = ""
    """The Trainer's precision."""
    num_processes: int = 1
    data: Mapping[str, str] = field(default_factory=dict)
    """Digests of the rows that the Trainer got; empty if they did not come from a data module of this package."""

    def before(self) -> Fit:
        """Return this training when a fit begins."""
        return replace(self, ended=False)

    def after(self, trainer: L.Trainer) -> Fit:
        """Return this training when the fit of a Trainer ends."""
        module = getattr(trainer, "datamodule", None)
        # A fit that continues from a checkpoint counts the steps before it.
        earlier = self if trainer.ckpt_path is None else replace(self, steps=0, epochs=0)
        by_norm = trainer.gradient_clip_algorithm != GradClipAlgorithmType.VALUE
        return replace(
            self,
            ended=True,
            steps=earlier.steps + trainer.global_step,
            epochs=earlier.epochs + trainer.current_epoch,
            accumulate=trainer.accumulate_grad_batches,
            gradient_clip=(trainer.gradient_clip_val or None) if by_norm else None,
            precision=str(trainer.precision),
            num_processes=trainer.world_size,
            data=dict(module.data.digests) if isinstance(module, TaskDataModule) else {},
        )
