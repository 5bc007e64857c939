"""The metrics restated as plain Python loops with the papers' indices, and the cells of R that each metric needs.

Written from the formulas, without torch and without looking at the library's code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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
    return math.fsum(R[T - 1][i] - R[i][i] for i in range(T)) / T


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


def _cells(wanted: Callable[[int, int, int], bool]) -> Callable[[int], Cells]:
    return lambda T: {(i, j) for i in range(T) for j in range(T) if wanted(i, j, T - 1)}


NEEDED: dict[str, Callable[[int], Cells]] = {
    "acc": _cells(lambda i, j, end: i == end),
    "learning_accuracy": _cells(lambda i, j, end: i == j),
    "average_accuracy_tri": _cells(lambda i, j, end: i >= j),
    "average_incremental_accuracy": _cells(lambda i, j, end: i >= j),
    "bwt_gem": _cells(lambda i, j, end: j < end and i in (j, end)),
    "bwt_gem_code": _cells(lambda i, j, end: j < end and i in (j, end)),
    "bwt_tri": _cells(lambda i, j, end: j < end and i >= j),
    "bwt_plus": _cells(lambda i, j, end: j < end and i >= j),
    "rem": _cells(lambda i, j, end: j < end and i >= j),
    "forgetting_max": _cells(lambda i, j, end: j < end and i >= j),
    "forgetting_max_all_rows": _cells(lambda i, j, end: j < end),
    "forgetting_first": _cells(lambda i, j, end: j < end and i in (j, end)),
    "fwt_tri": _cells(lambda i, j, end: i < j),
    "fwt_gem": _cells(lambda i, j, end: j == i + 1),
    "fwt_gem_code": _cells(lambda i, j, end: j == i + 1),
    "fwt_plasticity": _cells(lambda i, j, end: i == j > 0),
    "intransigence": _cells(lambda i, j, end: i == j == end),
    "intransigence_mean": _cells(lambda i, j, end: i == j),
}
"""For each metric, the cells (i, j) of R that its formula reads, counted from 0."""
