"""What stands between learning a task and committing it: the learned bank, who may share its fit, the clock."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.course.signals import StopRequest
from continual_petl.learner import TaskPlan
from continual_petl.store.commit import Evidence

FITTED = "fitted.safetensors"
"""The bank at the end of a fit that several processes shared."""


@dataclass(frozen=True, kw_only=True)
class Learned:
    """A bank that is learned and scored, and not committed yet."""

    plan: TaskPlan
    bank: Bank
    backbone: Backbone
    evidence: Evidence
    seconds: dict[str, float]
    """Spent on data, training (in all starts of the task) and evaluation."""
    lost: tuple[str, ...]
    """What the user should know of this start of it, and the certificate does not say."""


class Ranks(Protocol):
    """Several processes that share the fit of one task, each with a part of its batches."""

    world_size: int
    """How many they are."""

    def fit(self, task: str, request: StopRequest) -> None:
        """Fit a task; `FITTED` and the best bank are then in its progress folder.

        Raises:
            Interrupted: if a stop was asked for; everything is saved.
        """

    def notice(self, plan: TaskPlan) -> str:
        """Return what the certificate says of them."""


class Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def credit(self, name: str, seconds: float) -> None:
        """Count seconds that a phase took before this clock was made."""
        self.laps[name] = self.laps.get(name, 0.0) + seconds

    def so_far(self, name: str) -> float:
        """Return how long a phase took by now that has not ended yet."""
        return self.laps.get(name, 0.0) + time.perf_counter() - self._last

    def lap(self, name: str) -> None:
        """Note how long the phase took that ends now."""
        self.laps[name], self._last = self.so_far(name), time.perf_counter()
