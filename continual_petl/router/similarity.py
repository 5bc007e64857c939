"""How near the rows of one task are to those of others, from stored sums alone.

The distance of a task A from a task B is the Mahalanobis distance of each of A's label means from the nearest of B's, in the
covariance that all tasks share, averaged over A's rows. It is one matrix product over the means of all tasks, however many
there are; no task's own covariance is read.

Shape suffixes: F numbers per row, M means of all tasks, C means of the new task.
"""

from __future__ import annotations

import numpy as np

from continual_petl.router.discriminant import shrinkage
from continual_petl.router.sums import ONE, TaskSums, shrunk, square
from continual_petl.router.totals import Totals


def distances(totals: Totals, task: TaskSums) -> dict[str, float]:
    """Return the distance of a task from every task with sums, nearest first.

    Args:
        totals: the sums of the learned tasks, which may include the task itself.
        task: its sums.

    Raises:
        ValueError: if the sums are of other layers than those of the learned tasks.
    """
    if totals.total_U is None:
        return {}
    if task.layers != totals.layers:
        raise ValueError(f"the sums are of layers {task.layers}, those of the learned tasks of {totals.layers}")
    tasks = sorted(totals.means)
    means_MF = np.concatenate([totals.means[name][1] for name in tasks])
    first_T = np.cumsum([0, *(len(totals.means[name][0]) for name in tasks[:-1])])
    within_FF = square(totals.total_U) / (ONE * totals.num_rows)
    shared_FF = shrunk(within_FF, shrinkage(totals.num_rows, means_MF.shape[1]))
    weight_FM = np.linalg.solve(shared_FF, means_MF.T)
    own_C = (np.linalg.solve(shared_FF, task.means_CF.T) * task.means_CF.T).sum(0)
    squared_CM = own_C[:, None] - 2 * task.means_CF @ weight_FM + (means_MF.T * weight_FM).sum(0)
    nearest_CT = np.sqrt(np.maximum(np.minimum.reduceat(squared_CM, first_T, axis=1), 0.0))
    found_T = task.counts_C @ nearest_CT / task.count
    return {tasks[number]: float(found_T[number]) for number in np.argsort(found_T, kind="stable")}
