"""Measures how near the rows of one task are to other tasks' rows, using stored routing statistics alone.

The distance of a task A from a task B is the Mahalanobis distance of each of A's label means from the nearest of B's, under
the covariance that all tasks share, averaged over A's rows. All distances take a single matrix product over the means of all
tasks, however many tasks there are; no task's own covariance is read.

Shape suffixes: F features per row, M means of all tasks, C means of the new task.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from continual_petl.router.discriminant import Discriminant, shrinkage
from continual_petl.router.sums import ONE, Array, shrunk, square
from continual_petl.router.totals import Totals


def distances(totals: Totals, counts_C: NDArray[np.int64], means_CF: Array) -> dict[str, float]:
    """Return the distance of a task from every task with routing statistics, nearest first; empty if there are none.

    Args:
        totals: the routing statistics of the learned tasks, which may include the task itself.
        counts_C: the number of the task's rows behind each of its means.
        means_CF: the task's means, computed from the same layers as in ``totals``.
    """
    if totals.total_U is None:
        return {}
    _, known_MF, first_T = totals.stacked()
    within_FF = square(totals.total_U) / (ONE * totals.num_rows)
    shared_FF = shrunk(within_FF, shrinkage(totals.num_rows, totals.width))
    own_C = (np.linalg.solve(shared_FF, means_CF.T) * means_CF.T).sum(0)
    squared_CM = own_C[:, None] - 2 * Discriminant(shared_FF, known_MF)(means_CF)
    nearest_CT = np.sqrt(np.maximum(np.minimum.reduceat(squared_CM, first_T, axis=1), 0.0))
    found_T = counts_C @ nearest_CT / counts_C.sum()
    tasks = sorted(totals.means)
    return {tasks[number]: float(found_T[number]) for number in np.argsort(found_T, kind="stable")}
