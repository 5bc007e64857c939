"""What a learner brings along against faults of a fit, whoever makes the Trainer: losses that diverge, memory that ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lightning as L

from continual_petl.learner.divergence import StopAtDivergence
from continual_petl.learner.memory import tells_of_memory as tells_of_memory
from continual_petl.learner.plan import TaskPlan


class ReportsFaults(L.LightningModule):
    """A LightningModule whose hooks around a batch tell of memory that ran out, and whose fits stop when they diverge."""

    active: str | None
    batch_at_hand: Mapping[str, Any] = {}
    """What was given last to a step; the hooks between two steps belong to it."""

    @property
    def plan(self) -> TaskPlan:
        """The active task."""
        raise NotImplementedError

    transfer_batch_to_device = tells_of_memory(L.LightningModule.transfer_batch_to_device)
    backward = tells_of_memory(L.LightningModule.backward)
    optimizer_step = tells_of_memory(L.LightningModule.optimizer_step)

    def configure_callbacks(self) -> list[L.Callback]:
        """Return what stops a fit whose loss is not finite any more."""
        return [] if self.active is None else [StopAtDivergence(self.plan)]
