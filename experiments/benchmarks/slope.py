"""Test whether costs rise with the number of tasks, by a least-squares line.

The result is the rise of the line from the first to the last task, as a share of the mean, with its 95 percent interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Slope:
    """A straight line through the costs of tasks."""

    mean: float
    share: float
    """Rise of the line from the first task to the last, as a share of the mean."""
    low: float
    """Lower end of the 95 percent interval of ``share``."""
    high: float


def slope(points: Sequence[tuple[float, float]]) -> Slope:
    """Fit a line to costs.

    Args:
        points: pairs of task number and cost, in any order.

    Raises:
        ValueError: if there are fewer than three points, or all belong to one task.

    Example:
        >>> found = slope([(2, 1.0), (3, 1.5), (4, 2.0)])
        >>> round(found.mean, 3), round(found.share, 3), round(found.high - found.low, 3)
        (1.5, 0.667, 0.0)
    """
    x, y = torch.tensor(list(points), dtype=torch.float64).reshape(-1, 2).unbind(1)
    if len(y) < 3 or bool((x == x[0]).all()):
        raise ValueError(
            f"slope: got {len(y)} costs; a line with an interval needs at least three, from more than one task"
        )
    whole, mean = float(x.max() - x.min()), float(y.mean())
    x = x - x.mean()
    rise = float((x * y).sum() / (x * x).sum())
    left = y - y.mean() - rise * x
    error = math.sqrt(float((left * left).sum()) / (len(y) - 2) / float((x * x).sum()))
    ends = [number * whole / mean for number in (rise, rise - 1.96 * error, rise + 1.96 * error)]
    return Slope(mean=mean, share=ends[0], low=ends[1], high=ends[2])
