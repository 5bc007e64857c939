"""Guards of a fit, whoever makes the Trainer: only the active bank learns, and the backbone stays as it is.

Those of every step look at identities and modes, never at the contents of a tensor.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer
from transformers import PreTrainedModel

from continual_petl.banks.bank import Bank
from continual_petl.learner.faults import ReportsFaults
from continual_petl.learner.isolation import check_frozen, check_modes, check_optimizer
from continual_petl.seeding import derive_seed


class GuardedModule(ReportsFaults):
    """A LightningModule that refuses to train anything but its active bank."""

    model: PreTrainedModel

    @property
    def active_bank(self) -> Bank:
        """The bank of the active task."""
        raise NotImplementedError

    def on_fit_start(self) -> None:
        """Refuse a Trainer that has fitted before; Lightning would train nothing, or less, and say nothing."""
        if self.trainer.global_step and self.trainer.ckpt_path is None:
            raise RuntimeError(
                f"task {self.plan.name!r}: this Trainer has already made {self.trainer.global_step} steps on something else, "
                "so its count of epochs would leave nothing to do here. Make a new L.Trainer for every task."
            )
        # The frozen backbone is meant to be in eval mode.
        warnings.filterwarnings("ignore", message=r"Found \d+ module\(s\) in eval mode at the start of training")
        # torchmetrics puts scores together from all processes before they are logged.
        warnings.filterwarnings("ignore", message=r"It is recommended to use `self\.log\(.val/")

    def on_train_start(self) -> None:
        """Check that only the active bank can be trained."""
        check_optimizer(self.plan.name, self.active_bank, self.trainer.optimizers, self)
        check_frozen(self.plan.name, self.active_bank, self)

    def on_train_batch_start(self, batch: Mapping[str, Any], batch_idx: int) -> None:
        """Seed the step, so that an interrupted run draws the same dropout as one that ran through."""
        check_modes(self.plan.name, self.model, dropout=self.plan.training.backbone_dropout)
        torch.manual_seed(derive_seed(self.plan.seed, "step", self.current_epoch, batch_idx, self.global_rank))

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Check the optimizer that is about to move parameters."""
        check_optimizer(self.plan.name, self.active_bank, self.trainer.optimizers, self)

    def on_train_end(self) -> None:
        """Check that nothing else received a gradient."""
        check_frozen(self.plan.name, self.active_bank, self)

    def on_validation_start(self) -> None:
        """Check that no dropout is on."""
        check_modes(self.plan.name, self.model, dropout=False)

    on_test_start = on_validation_start
