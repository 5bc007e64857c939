"""The learner: the LightningModule that activates a bank and computes its loss and scores.

The names below load what they need when they are first used: who only answers needs no Lightning, which takes seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from continual_petl.learner.learner import ContinualLearner as ContinualLearner
    from continual_petl.learner.plan import TaskPlan as TaskPlan

_HOME = {"ContinualLearner": "continual_petl.learner.learner", "TaskPlan": "continual_petl.learner.plan"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(_HOME)}")
    return getattr(importlib.import_module(_HOME[name]), name)
