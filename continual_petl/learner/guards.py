"""Guards a fit with any Trainer: only the active bank learns, the backbone does not change, and the loss is finite.

The checks in every step compare the identities of tensors and the modes of modules, never the contents of tensors.
"""

from __future__ import annotations

import warnings
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from continual_petl.banks.bank import Bank
from continual_petl.learner.divergence import LossWatch
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
