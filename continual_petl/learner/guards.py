"""Guards a fit with any Trainer: only the active bank learns, the backbone does not change, and the loss is finite.

The checks in every step compare the identities of tensors and the modes of modules, never the contents of tensors. On the
CPU each loss is checked before its gradients are computed. On other devices every check would have to wait for the device,
so losses are collected and checked together: every twenty steps, and before each validation and checkpoint.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from continual_petl.banks.bank import Bank
from continual_petl.errors import DivergedError
from continual_petl.learner.isolation import check_frozen, check_modes, check_optimizer
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.seeding import derive_seed


class LearnerGuards(L.Callback):
    """Refuses to train anything but the active bank; every `ContinualLearner` adds one to its Trainer.

    It runs after the user's callbacks, so that it sees their effects. It also seeds every step.

    Args:
        plan: the task being learned.
        bank: its bank.
        model: the backbone.

    Raises:
        IsolationError: if anything else is trainable, or the backbone is not in eval mode.
        DivergedError: at the first loss that is not finite.
    """

    def __init__(self, plan: TaskPlan, bank: Bank, model: nn.Module) -> None:
        self._plan, self._bank, self._model = plan, bank, model
        self._losses = LossWatch(plan)

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # Lightning would silently train for fewer steps, or not at all.
        if trainer.global_step and trainer.ckpt_path is None:
            raise RuntimeError(
                f"task {self._plan.name!r}: this Trainer has already taken {trainer.global_step} steps on another task, so "
                "its epoch count would leave nothing to train here. Create a new L.Trainer for every task."
            )
        # The frozen backbone is in eval mode on purpose.
        warnings.filterwarnings("ignore", message=r"Found \d+ module\(s\) in eval mode at the start of training")
        # torchmetrics combines the scores of all processes before they are logged.
        warnings.filterwarnings("ignore", message=r"It is recommended to use `self\.log\(.val/")

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        check_optimizer(self._plan.name, self._bank, trainer.optimizers, pl_module)
        check_frozen(self._plan.name, self._bank, pl_module)

    @override
    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        check_modes(self._plan.name, self._model, dropout=self._plan.training.backbone_dropout)
        self._losses.begin(batch, batch_idx)
        # With this seed, a resumed run draws the same dropout masks as an uninterrupted run.
        torch.manual_seed(derive_seed(self._plan.seed, "step", trainer.current_epoch, batch_idx, trainer.global_rank))

    @override
    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        self._losses.add(loss, step=trainer.global_step, epoch=trainer.current_epoch)

    @override
    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        check_optimizer(self._plan.name, self._bank, trainer.optimizers, pl_module)

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._losses.check()

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        check_frozen(self._plan.name, self._bank, pl_module)

    @override
    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._losses.check()
        check_modes(self._plan.name, self._model, dropout=False)

    @override
    def on_test_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        check_modes(self._plan.name, self._model, dropout=False)

    @override
    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        self._losses.check()


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
        return f"{where}, rows {shown} of those that are learned from, 0-based, after rows were held out)"


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
