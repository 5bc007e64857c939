"""Means with their standard errors over seeds, and their format in tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Mean:
    """A mean with its standard error over seeds (s / sqrt(n)), which is None with fewer than two seeds."""

    value: float
    error: float | None
    count: int

    def __str__(self) -> str:
        return f"{self.value:.1f}" if self.error is None else f"{self.value:.1f} ± {self.error:.1f}"


def mean_of(values: Iterable[float | None]) -> Mean | None:
    """Return the mean of the values; None if any is missing, since the mean of some seeds is not the mean of all."""
    known = list(values)
    if not known or any(value is None for value in known):
        return None
    numbers = [value for value in known if value is not None]
    count = len(numbers)
    value = math.fsum(numbers) / count
    if count == 1:
        return Mean(value, None, 1)
    variance = math.fsum((number - value) ** 2 for number in numbers) / (count - 1)
    return Mean(value, math.sqrt(variance / count), count)


def mean_over_tasks(by_task: Sequence[Sequence[float | None]]) -> Mean | None:
    """Return the mean over tasks, with its standard error over seeds.

    Args:
        by_task: the scores of each task, in the order of the seeds; if any is missing, the result is None.
    """
    if len({len(scores) for scores in by_task}) > 1:
        return None
    by_seed = [mean_of(seed) for seed in zip(*by_task, strict=True)]
    return mean_of(None if each is None else each.value for each in by_seed)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    Example:
        >>> counted(1, "seed"), counted(3, "seed")
        ('1 seed', '3 seeds')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def shown(mean: Mean | None, digits: int = 1) -> str:
    """Return a table cell; a dash if trials are missing."""
    if mean is None:
        return "-"
    value = f"{mean.value:.{digits}f}"
    return value if mean.error is None else f"{value} ± {mean.error:.{digits}f}"
