"""What a callback can watch beyond Lightning's hooks: the moments between two tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lightning as L

from continual_petl.backbones.backbone import Backbone
from continual_petl.store.store import Store


@dataclass(frozen=True, kw_only=True)
class TaskEvent:
    """A moment of a course, for callbacks to look at."""

    task: str
    index: int
    """Position of the task in the order of learning."""
    num_tasks: int
    """Number of tasks in the stream."""
    store: Store
    backbones: dict[str, Backbone]
    """By precision: every backbone that is in memory."""
    notices: tuple[str, ...] = ()
    """What the user should know and need not act on."""


class StreamCallback(L.Callback):
    """A Lightning callback that also hears of tasks. Callbacks watch and may raise; they never change anything."""

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
            cells: the row: dictionaries with task, metric, value (None if not measured) and status.
        """
