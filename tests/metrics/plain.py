"""The metrics restated as plain Python loops with the papers' indices; a new metric needs a function of its name here.

Written from the formulas, without torch and without looking at the library's code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from inspect import signature
from typing import Any

Matrix = Sequence[Sequence[float]]
Cells = set[tuple[int, int]]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def acc(R: Matrix) -> float:
    return _mean([R[len(R) - 1][i] for i in range(len(R))])


def learning_accuracy(R: Matrix) -> float:
    return _mean([R[i][i] for i in range(len(R))])


def average_incremental_accuracy(R: Matrix) -> float:
    return sum(sum(row[: i + 1]) / (i + 1) for i, row in enumerate(R)) / len(R)


def average_accuracy_tri(R: Matrix) -> float:
    T = len(R)
    return math.fsum(R[i][j] for i in range(T) for j in range(T) if i >= j) / (T * (T + 1) / 2)


def bwt_gem(R: Matrix) -> float:
    T = len(R)
    return math.fsum(R[T - 1][i] - R[i][i] for i in range(T - 1)) / (T - 1)


def bwt_gem_code(R: Matrix) -> float:
    T = len(R)
    return math.fsum(R[T - 1][i] - R[i][i] for i in range(T - 1)) / T  # for the last task, this is a score minus itself


def bwt_tri(R: Matrix) -> float:
    T = len(R)
    return math.fsum(R[i][j] - R[j][j] for i in range(1, T) for j in range(i)) / (T * (T - 1) / 2)


def bwt_plus(R: Matrix) -> float:
    return max(bwt_tri(R), 0.0)


def rem(R: Matrix) -> float:
    return 1 - abs(min(bwt_tri(R), 0.0))


def forgetting_max(R: Matrix) -> float:
    T = len(R)
    return _mean([max(R[row][j] for row in range(j, T - 1)) - R[T - 1][j] for j in range(T - 1)])


def forgetting_max_all_rows(R: Matrix) -> float:
    T = len(R)
    return _mean([max(R[row][j] for row in range(T - 1)) - R[T - 1][j] for j in range(T - 1)])


def forgetting_first(R: Matrix) -> float:
    T = len(R)
    return _mean([R[j][j] - R[T - 1][j] for j in range(T - 1)])


def fwt_tri(R: Matrix) -> float:
    T = len(R)
    return math.fsum(R[i][j] for i in range(T) for j in range(T) if i < j) / (T * (T - 1) / 2)


def fwt_gem(R: Matrix, b: Sequence[float]) -> float:
    return math.fsum(R[i - 1][i] - b[i] for i in range(1, len(R))) / (len(R) - 1)


def fwt_gem_code(R: Matrix, b: Sequence[float]) -> float:
    return math.fsum(R[i - 1][i] - b[i] for i in range(1, len(R))) / len(R)


def fwt_plasticity(R: Matrix, s: Sequence[float]) -> float:
    return math.fsum(R[i][i] - s[i] for i in range(1, len(R))) / (len(R) - 1)


def intransigence(R: Matrix, a: Sequence[float]) -> float:
    return a[-1] - R[-1][-1]


def intransigence_mean(R: Matrix, a: Sequence[float]) -> float:
    return _mean([a[k] - R[k][k] for k in range(len(R))])


def needed(name: str, T: int) -> Cells:
    """Return the cells (i, j) of R that a metric's formula reads, counted from 0."""
    cells: Cells = set()

    class Row(list[float]):
        def __init__(self, i: int) -> None:
            super().__init__([0.5] * T)
            self.i = i

        def __getitem__(self, key: Any) -> Any:
            read = range(T)[key]
            cells.update((self.i, j) for j in ([read] if isinstance(read, int) else read))
            return super().__getitem__(key)

    formula = globals()[name]
    formula(*([Row(i) for i in range(T)], [0.5] * T)[: len(signature(formula).parameters)])
    return cells
