"""The base class of callbacks with hooks between tasks, in addition to Lightning's hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import lightning as L

from continual_petl.backbones.backbone import Backbone
from continual_petl.store.certificate.finding import Finding, TaskCheck
from continual_petl.store.folder.results_file import RoutedCell
from continual_petl.store.store import Store


class Rechecked(Protocol):
    """The result of predicting a task's rows again."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Differences from the certificate."""

    @property
    def unreachable(self) -> str | None:
        """Why the rows are not available; None if they were predicted."""


class IgnoredSetting(str):
    """A notice that a setting of the stream has no effect."""


@dataclass(frozen=True, kw_only=True)
class TaskEvent:
    """A moment in a run, passed to callbacks."""

    task: str
    index: int
    """Position of the task in the order in which tasks are learned."""
    num_tasks: int
    """Number of tasks that have been learned or are in the stream."""
    store: Store
    backbones: dict[str, Backbone]
    """Every backbone in memory, by precision."""
    notices: tuple[str, ...] = ()
    """Notices for the user that need no action."""
    models: frozenset[str] = frozenset()
    """Tasks whose banks are in memory."""
    checked: Mapping[str, TaskCheck] = field(default_factory=dict)
    """The checks of earlier tasks' certificates (probes included) that ran after this task, by name of the earlier task."""
    routed: tuple[RoutedCell, ...] = ()
    """For each measured task, where its rows are routed if no task is named; the current task comes last."""
    recheck: Callable[[str], Rechecked] | None = None
    """Predicts the test rows of a learned task again, if available, and compares the result with its certificate."""


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

    def on_run_start(self, notices: tuple[str, ...]) -> None:
        """Called when a run begins.

        Args:
            notices: notices for the user that need no action; an `IgnoredSetting` is worth reading in any case.
        """

    def on_task_start(self, event: TaskEvent) -> None:
        """Called when a task is about to be learned and its data is ready."""

    def on_task_end(self, event: TaskEvent, cells: list[dict[str, Any]]) -> None:
        """Called when a task has been learned and committed, and its row of the result matrix has been measured.

        Args:
            event: the task.
            cells: the row, as far as it is known: dictionaries with task, metric, value (None if not measured) and
                status; the cell of the task itself comes last.
        """

    def on_task_checked(self, event: TaskEvent, seconds: dict[str, float], checks: dict[str, int]) -> None:
        """Called when `on_task_end` of all callbacks has returned.

        Args:
            event: the task.
            seconds: time spent by phase: data, train, evaluate, commit, measure, verify.
            checks: number of earlier certificates that were checked, by depth: digests, probe, full.
        """

    def on_run_end(self, store: Store, error: BaseException | None) -> None:
        """Called when a run ends, because everything has been learned or something stopped it.

        Args:
            store: the run.
            error: the exception that is about to be raised; None if there is none.
        """
