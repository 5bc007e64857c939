"""The numbers of a course after each task, from running sums: what a row costs does not grow with the rows before it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from continual_petl.report.results import Results

MOST_SCORES = 50
"""Tasks, the first ones, whose scores are logged under their own names after every further task."""


@dataclass
class _Column:
    first: float
    """The score just after the task was learned."""
    best: float
    """Of all rows; NaN as soon as one is not known."""
    num_rows: int
    """How many rows have the task."""
    place: int
    """Number of the task in the order of learning."""


class CourseNumbers:
    """What is known of a course after each task; equal to what `Results` computes from the whole matrix."""

    def __init__(self) -> None:
        self._columns: dict[str, _Column] = {}

    @property
    def num_tasks(self) -> int:
        """Number of rows so far."""
        return len(self._columns)

    def add(self, task: str, row: Mapping[str, float], certified: int = 0) -> dict[str, float]:
        """Take the row of R after a task, and return the numbers of then.

        Args:
            task: the task; its own score is in the row.
            row: by task, NaN or left out where it is not known.
            certified: how many of its scores were carried over from certificates and not measured.

        Returns:
            ``course/...``, and ``score/TASK`` of the first tasks and the newest; NaN is left out.
        """
        number, own = len(self._columns), row[task]
        earlier = [name for name in row if name != task]
        drops, changes = [], []
        whole = len(earlier) == number
        for name in earlier:
            column, value = self._columns[name], row[name]
            changes.append(value - column.first)
            # Rows that did not have the task hide its best score.
            drops.append(column.best - value if column.num_rows == number - column.place else math.nan)
            column.best = _larger(column.best, value)
            column.num_rows += 1
        self._columns[task] = _Column(own, own, 1, number)
        known = [abs(change) for change in changes if not math.isnan(change)]
        numbers = {
            "course/tasks": float(number + 1),
            "course/newest_score": own,
            "course/acc": _mean([row[name] for name in row]) if whole else math.nan,
            "course/bwt": _mean(changes) if whole else math.nan,
            "course/forgetting": _mean(drops) if whole else math.nan,
            "course/largest_change": max(known, default=math.nan),
            "course/certified": float(certified),
        }
        numbers |= {f"score/{name}": row[name] for name in row if self._columns[name].place < MOST_SCORES}
        return {name: value for name, value in numbers.items() if math.isfinite(value)}


def replayed(results: Results) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Give the rows of a matrix, oldest first; what is not known is left out."""
    for i, task in enumerate(results.tasks):
        row = results.R[i, : i + 1].tolist()
        status = results.status[i]
        yield (
            task,
            {name: row[j] for j, name in enumerate(results.tasks[: i + 1]) if status[j] != "not measured" or j == i},
        )


def _larger(one: float, other: float) -> float:
    return math.nan if math.isnan(one) or math.isnan(other) else max(one, other)


def _mean(values: list[float]) -> float:
    # As `continual_petl.metrics` does it, to the last bit.
    return float(torch.tensor(values, dtype=torch.float64).mean()) if values else math.nan
