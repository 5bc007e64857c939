"""What a callback can watch beyond Lightning's hooks: the moments between two tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import lightning as L

from continual_petl.backbones.backbone import Backbone
from continual_petl.store.finding import Finding, TaskCheck
from continual_petl.store.store import Store


class Rechecked(Protocol):
    """What came of answering a task's rows again."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is not as it was certified."""

    @property
    def unreachable(self) -> str | None:
        """Why the rows are not available; None if they were answered."""


@dataclass(frozen=True, kw_only=True)
class TaskEvent:
    """A moment of a course, for callbacks to look at."""

    task: str
    index: int
    """Position of the task in the order of learning."""
    num_tasks: int
    """Number of tasks that are learned, or that the stream names."""
    store: Store
    backbones: dict[str, Backbone]
    """By precision: every backbone that is in memory."""
    notices: tuple[str, ...] = ()
    """What the user should know and need not act on."""
    residents: frozenset[str] = frozenset()
    """Tasks whose banks are in memory."""
    checked: Mapping[str, TaskCheck] = field(default_factory=dict)
    """Earlier tasks whose certificates, probes included, the course itself has checked after this task, and what it found."""
    recheck: Callable[[str], Rechecked] | None = None
    """Answers the test rows of a learned task again and compares them with its certificate, where the rows are available."""


class StreamCallback(L.Callback):
    """A Lightning callback that also hears of tasks. Callbacks watch and may raise; they never change anything."""

    def for_worker(self) -> L.Callback | None:
        """Return what watches the fits of tasks that are learned in other processes; None: nothing does.

        This callback stays in the process that commits, and hears of tasks there; hooks of Lightning are called in the one
        that learns. What is returned is sent there, once for each task, and nothing of it comes back.
        """
        return None

    def notices(self) -> list[str]:
        """Return what the user should know of this callback before a course begins; all callbacks are told."""
        return []

    def on_course_start(self, notices: tuple[str, ...]) -> None:
        """A course begins.

        Args:
            notices: what the user should know and need not act on.
        """

    def on_task_start(self, event: TaskEvent) -> None:
        """A task is about to be learned; its data is ready."""

    def on_task_end(self, event: TaskEvent, cells: list[dict[str, Any]]) -> None:
        """A task is learned and committed, and its row of the result matrix is measured.

        Args:
            event: which task.
            cells: the row, as far as somebody looked: dictionaries with task, metric, value (None if not measured) and
                status; its own comes last.
        """

    def on_task_checked(self, event: TaskEvent, seconds: dict[str, float], checks: dict[str, int]) -> None:
        """All callbacks have looked at a task.

        Args:
            event: which task.
            seconds: what it cost by phase: data, train, evaluate, commit, measure, verify.
            checks: number of earlier certificates that were checked, by what was done: digests, probe, full.
        """

    def on_course_end(self, store: Store, error: BaseException | None) -> None:
        """A course ends: everything is learned, or something stopped it.

        Args:
            store: the run.
            error: what is about to be raised; None if all is well.
        """
