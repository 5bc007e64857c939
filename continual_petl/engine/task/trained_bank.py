"""A trained bank before its commit, with the interface for shared fits and the clock that times each phase."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.engine.signals import StopRequest
from continual_petl.learner import TaskPlan
from continual_petl.store.commit import Evidence

FITTED = "fitted.safetensors"
"""The bank at the end of a fit that several processes shared."""


@dataclass(frozen=True, kw_only=True)
class TrainedBank:
    """A bank that is learned and scored, but not committed yet."""

    plan: TaskPlan
    bank: Bank
    backbone: Backbone
    evidence: Evidence
    seconds: dict[str, float]
    """Seconds of data preparation, training (over all starts of the task) and evaluation."""
    lost: tuple[str, ...]
    """Notices for the user about this start, which are not in the certificate."""


class Ranks(Protocol):
    """Several processes that share the fit of one task, each with a part of its batches."""

    world_size: int
    """Number of processes."""

    def fit(self, task: str, request: StopRequest) -> None:
        """Fit a task; `FITTED` and the best bank are then in its progress folder.

        Raises:
            Interrupted: if a stop was requested; everything is saved.
        """

    def notice(self, plan: TaskPlan) -> str:
        """Return the notice for the certificate."""


class Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def credit(self, name: str, seconds: float) -> None:
        """Add the seconds that a phase took before this clock was created."""
        self.laps[name] = self.laps.get(name, 0.0) + seconds

    def so_far(self, name: str) -> float:
        """Return how long the current phase has taken so far."""
        return self.laps.get(name, 0.0) + time.perf_counter() - self._last

    def lap(self, name: str) -> None:
        """Record how long the phase took that ends now."""
        self.laps[name], self._last = self.so_far(name), time.perf_counter()
