"""Metrics of a run after each task, from running sums: the cost of a row does not grow with the number of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from continual_petl.metrics.arrays import mean
from continual_petl.report.results import Results

MOST_SCORES = 50
"""Number of first tasks whose scores are logged under their own names after every further task."""


@dataclass
class _Column:
    first: float
    """The score just after the task was learned."""
    best: float
    """Sum over all rows; NaN as soon as one is unknown."""
    num_rows: int
    """Number of rows that have the task."""
    place: int
    """Number of the task in the order of learning."""


class RunNumbers:
    """Running metrics of a run; equal to what `Results` computes from the whole matrix."""

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}

    @property
    def num_tasks(self) -> int:
        """Number of rows so far."""
        return len(self._columns)

    def add(self, task: str, row: Mapping[str, float], certified: int = 0) -> dict[str, float]:
        """Add the row of R after a task, and return the metrics at that point.

        Args:
            task: the task; its own score is in the row.
            row: scores by task, NaN or left out if unknown.
            certified: number of scores carried over from certificates instead of being measured.

        Returns:
            ``run/...``, and ``score/TASK`` of the first tasks and the newest; NaN is left out.
        """
        number, own = len(self._columns), row[task]
        earlier = [name for name in row if name != task]
        drops, changes = [], []
        whole = len(earlier) == number
        for name in earlier:
            column, value = self._columns[name], row[name]
            changes.append(value - column.first)
            # Rows without the task hide its best score.
            drops.append(column.best - value if column.num_rows == number - column.place else math.nan)
            column.best = _larger(column.best, value)
            column.num_rows += 1
        self._columns[task] = _Column(own, own, 1, number)
        known = [abs(change) for change in changes if not math.isnan(change)]
        numbers = {
            "run/tasks": float(number + 1),
            "run/newest_score": own,
            "run/acc": _mean([row[name] for name in row]) if whole else math.nan,
            "run/bwt": _mean(changes) if whole else math.nan,
            "run/forgetting": _mean(drops) if whole else math.nan,
            "run/largest_change": max(known, default=math.nan),
            "run/certified": float(certified),
        }
        numbers |= {f"score/{name}": row[name] for name in row if self._columns[name].place < MOST_SCORES}
        return {name: value for name, value in numbers.items() if math.isfinite(value)}


def replayed(results: Results) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Yield the rows of a matrix, oldest first; unknown scores are left out."""
    for i, task in enumerate(results.tasks):
        row = results.row(i).tolist()
        status = results.status[i]
        yield (
            task,
            {name: row[j] for j, name in enumerate(results.tasks[: i + 1]) if status[j] != "not measured" or j == i},
        )


def _larger(one: float, other: float) -> float:
    return math.nan if math.isnan(one) or math.isnan(other) else max(one, other)


def _mean(values: list[float]) -> float:
    return mean(np.array(values))  # as in `continual_petl.metrics`, to the last bit
