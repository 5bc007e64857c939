"""Tracks what each task adds: parameters trained, stored and active, and bytes on disk, compared with full copies."""

from __future__ import annotations

from typing_extensions import override

from continual_petl.callbacks.base import StreamCallback, WatchedRun, WatchedTask
from continual_petl.report.growth import GrowthRow, growth


class ParameterGrowth(StreamCallback):
    """Keep one row per learned task.

    Example::

        tracker = ParameterGrowth()
        learn(stream, run_dir="runs/mine", callbacks=[tracker])
        tracker.rows[-1].cumulative_bytes
    """

    def __init__(self) -> None:
        self.rows: list[GrowthRow] = []

    @override
    def on_task_end(self, run: WatchedRun, task: WatchedTask) -> None:
        self.rows = growth(run.store, self.rows)
