"""Whether costs rise from task to task: a straight line through them.

The line is that of least squares through the costs of the tasks from the tenth on. It is told as the share of the mean by
which it rises from its first task to its last, with the 95 percent interval of that share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

FIRST = 10
"""The task from which on costs have to be flat."""


@dataclass(frozen=True, kw_only=True)
class Slope:
    """A straight line through the costs of tasks."""

    mean: float
    share: float
    """By which the line rises from the first task to the last, as a share of the mean."""
    low: float
    """End of the 95 percent interval of ``share``."""
    high: float


def slope(values: Sequence[float], *, first: int = FIRST) -> Slope:
    """Return the line through the values of tasks ``first`` (counted from 1) and later.

    Raises:
        ValueError: if these are fewer than three.

    Example:
        >>> found = slope([9.0, 1.0, 1.5, 2.0], first=2)
        >>> round(found.mean, 3), round(found.share, 3), round(found.high - found.low, 3)
        (1.5, 0.667, 0.0)
    """
    y = torch.tensor(list(values[first - 1 :]), dtype=torch.float64)
    if len(y) < 3:
        raise ValueError(f"slope: got {len(y)} values from task {first} on; a line with an interval needs three")
    x = torch.arange(len(y), dtype=torch.float64)
    x = x - x.mean()
    rise = float((x * y).sum() / (x * x).sum())
    left = y - y.mean() - rise * x
    error = math.sqrt(float((left * left).sum()) / (len(y) - 2) / float((x * x).sum()))
    whole, mean = len(y) - 1, float(y.mean())
    ends = [number * whole / mean for number in (rise, rise - 1.96 * error, rise + 1.96 * error)]
    return Slope(mean=mean, share=ends[0], low=ends[1], high=ends[2])
