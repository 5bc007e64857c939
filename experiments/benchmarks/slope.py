"""Whether costs rise with the number of tasks: a least-squares line.

The result is its rise from the first to the last task as a share of the mean, with the 95 percent interval of that share.
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
    """By which the line rises from the first task to the last, as a share of the mean."""
    low: float
    """End of the 95 percent interval of ``share``."""
    high: float


def slope(points: Sequence[tuple[float, float]]) -> Slope:
    """Return the line through costs.

    Args:
        points: number of a task, and its cost; in any order.

    Raises:
        ValueError: if these are fewer than three, or all of one task.

    Example:
        >>> found = slope([(2, 1.0), (3, 1.5), (4, 2.0)])
        >>> round(found.mean, 3), round(found.share, 3), round(found.high - found.low, 3)
        (1.5, 0.667, 0.0)
    """
    x, y = torch.tensor(list(points), dtype=torch.float64).reshape(-1, 2).unbind(1)
    if len(y) < 3 or bool((x == x[0]).all()):
        raise ValueError(f"slope: got {len(y)} costs; a line with an interval needs three, of more than one task")
    whole, mean = float(x.max() - x.min()), float(y.mean())
    x = x - x.mean()
    rise = float((x * y).sum() / (x * x).sum())
    left = y - y.mean() - rise * x
    error = math.sqrt(float((left * left).sum()) / (len(y) - 2) / float((x * x).sum()))
    ends = [number * whole / mean for number in (rise, rise - 1.96 * error, rise + 1.96 * error)]
    return Slope(mean=mean, share=ends[0], low=ends[1], high=ends[2])
