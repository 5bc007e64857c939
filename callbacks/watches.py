"""Callbacks that watch what each further task costs: parameters and bytes, and rows that are routed to a wrong task."""

from __future__ import annotations

import logging

from typing_extensions import override

from continual_petl.callbacks.base import StreamCallback, WatchedRun, WatchedTask
from continual_petl.report.growth import GrowthRow, growth
from continual_petl.store.ledger.lines import RoutedCell, RowLine

_log = logging.getLogger(__name__)


class ParameterGrowth(StreamCallback):
    """Keep one row per learned task: parameters trained, stored and active, and bytes on disk, compared with full copies.

    Example::

        tracker = ParameterGrowth()
        learn(stream, run_dir="runs/mine", callbacks=[tracker])
        tracker.rows[-1].cumulative_bytes
    """

    def __init__(self) -> None:
        self.rows: list[GrowthRow] = []

    @override
    def on_run_start(self, run: WatchedRun) -> None:
        self.rows = growth(run.store)  # those of an earlier run may be of other tasks with the same names

    @override
    def on_task_end(self, run: WatchedRun, task: WatchedTask) -> None:
        self.rows = growth(run.store, self.rows)


class RoutingWatch(StreamCallback):
    """After each task, check whether fewer rows of an earlier task are routed to the right task than before.

    Args:
        points: a warning is logged if the share of correctly routed rows drops by more than this many percentage points.

    Raises:
        ValueError: if ``points`` is negative.

    Example::

        learn(stream, "runs/mine", callbacks=[RoutingWatch(points=1.0)])
    """

    def __init__(self, points: float = 2.0) -> None:
        if not points >= 0:
            raise ValueError(f"points: got {points}; give a number of percentage points, 0 or more")
        self.points = points
        self.losses: dict[str, dict[str, float]] = {}
        """For each newly learned task, the earlier tasks whose share dropped by more than `points`, and how far."""
        self._before: dict[tuple[str, int], float] | None = None

    @override
    def on_run_start(self, run: WatchedRun) -> None:
        self._before = None  # read again: it may be another run

    @override
    def on_task_end(self, run: WatchedRun, task: WatchedTask) -> None:
        if self._before is None:
            self._before = _newest(run, task)
        shares = {(cell.task, cell.index): _share(cell) for cell in task.routed}
        lost = {
            key: 100 * (self._before[key] - share)
            for key, share in shares.items()
            if key in self._before and 100 * (self._before[key] - share) > self.points
        }
        if lost:
            self.losses[task.name] = {earlier: points for (earlier, _), points in lost.items()}
            words = ", ".join(
                f"{earlier} {loss:.1f} points (now {shares[earlier, index]:.1%})"
                for (earlier, index), loss in lost.items()
            )
            _log.warning(
                "task %r takes rows from earlier tasks when no task is named: %s. Predictions with a named task are "
                "unchanged. The page of the report shows which tasks rows are routed to.",
                task.name,
                words,
            )
        self._before |= shares


def _newest(run: WatchedRun, task: WatchedTask) -> dict[tuple[str, int], float]:
    """Return the newest known share of each earlier task, from the run folder."""
    lines = [line for line in run.store.results() if isinstance(line, RowLine) and line.after != task.name]
    return {(cell.task, cell.index): _share(cell) for line in lines for cell in line.routed}


def _share(cell: RoutedCell) -> float:
    return cell.chosen.get(cell.task, 0) / max(1, cell.num_examples)
