"""The learner: the LightningModule that activates a bank and computes its loss and scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from continual_petl._lazy import lazy_names

if TYPE_CHECKING:
    from continual_petl.learner.learner import ContinualLearner as ContinualLearner
    from continual_petl.learner.task_plan import TaskPlan as TaskPlan

__getattr__, __dir__, __all__ = lazy_names(__name__)
