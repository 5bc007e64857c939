"""R-routed: how the rows of each task were predicted, after each task, without a task name.

Predictions for rows with a named task cannot change. Without a named task they can, if a new task resembles an earlier one.
The accuracy lost in this way is reported separately from forgetting, since the router causes it, not the banks.

Shape suffixes: T tasks that stored routing statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_jsonable_python

from continual_petl.metrics import acc, average_incremental_accuracy, forgetting_max
from continual_petl.metrics.arrays import mean
from continual_petl.store.ledger.lines import RoutedCell

SCORES = {
    "accuracy": "mean share of correct predictions, over the tasks so far",
    "average_incremental_accuracy": "mean accuracy over all steps (Rebuffi et al. 2017)",
    "routing_accuracy": "mean share of rows that are routed to their task",
    "within_task_accuracy": "share of correct predictions among the rows that are routed to their task",
    "unknown": "mean share of rows that do not resemble the rows of any task",
    "routing_loss": "mean drop of routing from its best; not forgetting: predictions with a named task are unchanged",
}
"""The scores of rows without a task name, and their meaning."""
LOW = 0.8
"""A task of which a smaller share of rows is recognised as its own is hardly told apart from others."""
Row = Mapping[str, RoutedCell]
"""The measurements after one task, by the task that the rows belong to."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RoutedResults:
    """Shares of rows, 0 to 1, for each task after each task; NaN where nothing was measured."""

    tasks: tuple[str, ...]
    """The tasks that stored routing statistics, in the order they were learned."""
    rows: tuple[Row, ...]
    """The measurements after each of these tasks."""

    @cached_property
    def R(self) -> NDArray[np.float64]:
        """``R[i, j]``: share of task ``j``'s rows that are predicted correctly after learning task ``i``, ``(T, T)``."""
        return self._matrix(lambda cell: cell.correct)

    @cached_property
    def routing(self) -> NDArray[np.float64]:
        """``routing[i, j]``: share of the rows of task ``j`` that are recognised as its own after task ``i``, ``(T, T)``."""
        return self._matrix(lambda cell: cell.chosen.get(cell.task, 0))

    @property
    def confusion(self) -> NDArray[np.float64]:
        """``confusion[i, j]``: share of the rows of task ``i`` that are routed to task ``j`` at the end, ``(T, T)``."""
        shares_TT = np.full((len(self.tasks), len(self.tasks)), np.nan)
        for i, task in enumerate(self.tasks):
            if (cell := self.rows[-1].get(task)) is not None:
                shares_TT[i] = [cell.chosen.get(routed_to, 0) / max(1, cell.num_examples) for routed_to in self.tasks]
        return shares_TT

    @property
    def hardly_told_apart(self) -> dict[str, float]:
        """The share of rows that are recognised as their task's own at the end, for tasks where it is below `LOW`; lowest
        first.
        """
        cells = ((cell, cell.chosen.get(cell.task, 0)) for cell in self.rows[-1].values())
        shares = {cell.task: own / cell.num_examples for cell, own in cells if is_low(own, cell.num_examples)}
        return dict(sorted(shares.items(), key=lambda item: item[1]))

    def after(self, count: int) -> dict[str, float]:
        """Return the scores after a number of these tasks; a score is NaN if it needs a row that was not measured.

        Returns:
            The scores by name; see `SCORES`.
        """
        cells = [self.rows[count - 1].get(task) for task in self.tasks[:count]] if count else []
        known = [cell for cell in cells if cell is not None]
        if not known:
            return dict.fromkeys(SCORES, math.nan)
        own = [cell.chosen.get(cell.task, 0) for cell in known]
        scores = dict(zip(SCORES, [math.nan] * len(SCORES), strict=True))
        scores["routing_accuracy"] = _share(own, cells)
        scores["unknown"] = _share([cell.unknown for cell in known], cells)
        right = [cell.correct_own for cell in known if cell.correct_own is not None]
        if len(right) == len(cells) and any(own):
            scores["within_task_accuracy"] = sum(right) / sum(own)
        if all(len(row) > i for i, row in enumerate(self.rows[:count])):
            R_TT = self.R[:count, :count]
            scores["accuracy"] = float(acc(R_TT))
            scores["average_incremental_accuracy"] = float(average_incremental_accuracy(R_TT))
            if count > 1:
                scores["routing_loss"] = float(forgetting_max(self.routing[:count, :count]))
        return scores

    @property
    def at_end(self) -> dict[str, float]:
        """The known scores after the last task, by name."""
        return {name: value for name, value in self.after(len(self.tasks)).items() if not math.isnan(value)}

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values, null for NaN."""
        matrices = {"R": self.R.tolist(), "routing": self.routing.tolist(), "confusion": self.confusion.tolist()}
        values = {"tasks": self.tasks, **matrices, **self.after(len(self.tasks))}
        json_values: dict[str, Any] = to_jsonable_python(values, inf_nan_mode="null")
        return json_values

    def _matrix(self, count: Callable[[RoutedCell], int | None]) -> NDArray[np.float64]:
        shares_TT = np.full((len(self.tasks), len(self.tasks)), np.nan)
        column_of = {task: j for j, task in enumerate(self.tasks)}
        for i, row in enumerate(self.rows):
            for task, cell in row.items():
                if task in column_of and (number := count(cell)) is not None:
                    shares_TT[i, column_of[task]] = number / max(1, cell.num_examples)
        return shares_TT


def is_low(own: int, of: int) -> bool:
    """Return whether a number of rows is a share below `LOW`; never of no rows."""
    return own < of and own / of < LOW


def routed_results(tasks: Sequence[str], rows: Sequence[Row]) -> RoutedResults | None:
    """Return R-routed for the tasks whose rows were routed just after they were learned; None if there are none.

    Args:
        tasks: the tasks of the run, in the order they were learned.
        rows: the measurements after each of them.
    """
    routed = [i for i, (task, row) in enumerate(zip(tasks, rows, strict=True)) if task in row]
    if not routed:
        return None
    return RoutedResults(tasks=tuple(tasks[i] for i in routed), rows=tuple(rows[i] for i in routed))


def _share(counts: Sequence[int], cells: Sequence[RoutedCell | None]) -> float:
    """Return the mean over tasks of the share of rows; NaN if a task was not measured."""
    if len(counts) < len(cells):
        return math.nan
    return mean(
        np.array([count / max(1, cell.num_examples) for count, cell in zip(counts, cells, strict=True) if cell])
    )
