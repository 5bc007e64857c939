"""Callbacks: Lightning's hooks see the inside of each fit; the hooks here see the run and its tasks, before and after a fit.

In order: `on_run_start`, then for every task `on_task_start`, the hooks of Lightning, `on_task_end`, and last `on_run_end`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import lightning as L

from continual_petl.report.results import Results, read_results
from continual_petl.store.certificate.finding import TaskCheck
from continual_petl.store.certificate.history import LossPoint, ScorePoint
from continual_petl.store.ledger.lines import MeasuredScore, RoutedCell
from continual_petl.store.store import Store


class IgnoredSetting(str):
    """A notice that a setting of the stream has no effect."""


@dataclass(frozen=True, kw_only=True)
class WatchedRun:
    """A run while it learns, as callbacks see it."""

    store: Store
    """The run folder: ``store.tasks``, ``store.certificate(task)`` and everything else that is committed."""
    stream: tuple[str, ...]
    """Names of the tasks of the stream, learned or not."""
    notices: tuple[str, ...] = ()
    """Notices for the user that need no action; an `IgnoredSetting` is worth reading in any case."""

    @property
    def num_tasks(self) -> int:
        """Number of tasks that have been learned or are in the stream; the stream need not name learned tasks."""
        return len({*self.store.tasks, *self.stream})

    @property
    def results(self) -> Results:
        """The result matrix R so far, read from the run folder."""
        return read_results(self.store)


@dataclass(frozen=True, kw_only=True)
class WatchedTask:
    """A task that is about to be learned, or has been learned, as callbacks see it."""

    name: str
    index: int
    """Position in the order in which tasks are learned."""
    notices: tuple[str, ...] = ()
    """Notices for the user that need no action."""
    cells: tuple[MeasuredScore, ...] = ()
    """The task's row of R, as far as it is known; the cell of the task itself comes last. Empty before it is learned, like
    everything below."""
    routed: tuple[RoutedCell, ...] = ()
    """For each measured task, where its rows are routed if no task is named; the task itself comes last."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Time spent by phase: data, train, evaluate, commit, measure, verify."""
    checks: tuple[TaskCheck, ...] = ()
    """The certificates of earlier tasks that were checked."""
    num_checks: Mapping[str, int] = field(default_factory=dict)
    """Number of certificates that were checked, by depth: digests, probe, full."""


class StreamCallback(L.Callback):
    """A Lightning callback with additional hooks for tasks. Callbacks observe and may raise; they never change anything."""

    def for_worker(self) -> L.Callback | None:
        """Return the callback to use for fits in other processes, or None.

        This callback itself stays in the process that commits banks, and its task hooks are called there; Lightning's hooks
        are called in the process that learns. The returned callback is sent to that process once for each task, and is not
        sent back.
        """
        return None

    def notices(self) -> list[str]:
        """Return notices about this callback, which are shown when a run begins."""
        return []

    def on_run_start(self, run: WatchedRun) -> None:
        """Called when a run begins."""

    def on_task_start(self, run: WatchedRun, task: WatchedTask) -> None:
        """Called when a task is about to be learned and its data is ready."""

    def on_task_end(self, run: WatchedRun, task: WatchedTask) -> None:
        """Called when a task has been learned and committed, its row of R has been measured, and earlier tasks were checked.

        If this raises, the task stays committed, and the hook is called again when the run is started again.
        """

    def on_run_end(self, run: WatchedRun, error: BaseException | None) -> None:
        """Called when a run ends, because everything has been learned or something stopped it.

        Args:
            run: the run.
            error: the exception that is about to be raised; None if there is none.
        """


class FitCurve(L.Callback):
    """The learning curve of a fit. A run attaches one that records it; other callbacks read its points."""

    @staticmethod
    def of(trainer: L.Trainer) -> FitCurve | None:
        """Return the curve that a run records; None for your own Trainer."""
        callbacks: list[L.Callback] = trainer.callbacks  # type: ignore[attr-defined]  # Lightning sets it from outside
        return next((callback for callback in callbacks if isinstance(callback, FitCurve)), None)

    def since(self, num_losses: int, num_scores: int) -> tuple[list[LossPoint], list[ScorePoint]]:
        """Return the points after the first ``num_losses`` losses and the first ``num_scores`` scores."""
        raise NotImplementedError
