"""The router: a linear discriminant over the means of all tasks, with one covariance that they share.

The rows of each label are assumed to be normally distributed around their mean m, with one covariance S for all labels. The
log-density of a row is then, up to a constant, ``m' S^-1 x - m' S^-1 m / 2`` (McLachlan 1992, Discriminant Analysis and
Statistical Pattern Recognition, section 3.1). That of a task is the mixture of its labels, weighed by their numbers of rows.
All tasks have the same prior probability. S is the mean over all rows of the tasks' covariances, mixed with a scaled
identity.

Shape suffixes: N rows, F numbers per row, T tasks, M means of all tasks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from continual_petl.router.sums import ONE, QUANTILES, Array, TaskSums, shrunk, square
from continual_petl.router.totals import Totals

SHRINKAGE = 0.003
"""Weight of the scaled identity in the shared covariance."""
KNOWN = 0.99
"""Share of a task's validation rows that are nearer than its threshold; a row farther away is unknown."""
MAX_PRECISIONS = 32
"""Number of tasks whose inverse covariances are kept in memory."""


class Router:
    """Scores rows for each of some tasks.

    Args:
        totals: the total of the tasks' sums; at least one task has sums.
        sums_of: returns the sums of one task, which are only needed to tell whether a row is unknown.
    """

    def __init__(self, totals: Totals, sums_of: Callable[[str], TaskSums]) -> None:
        assert totals.total_U is not None
        self.tasks = tuple(sorted(totals.means))
        self.layers = totals.layers
        self._sums_of = sums_of
        self._known: OrderedDict[str, tuple[TaskSums, Array]] = OrderedDict()
        covariance_FF = shrunk(square(totals.total_U) / (ONE * totals.num_rows), SHRINKAGE)
        means_MF = np.concatenate([totals.means[task][1] for task in self.tasks])
        counts = [totals.means[task][0] for task in self.tasks]
        self._weight_FM = np.linalg.solve(covariance_FF, means_MF.T)
        shares_M = np.concatenate([counts_C / counts_C.sum() for counts_C in counts])
        self._bias_M = np.log(shares_M) - 0.5 * (means_MF.T * self._weight_FM).sum(0)
        self._first_T = np.cumsum([0, *map(len, counts[:-1])])

    def scores(self, states_NF: Array) -> Array:
        """Return the log-probability of each task, up to a constant per row: ``(N, T)``, in the order of `tasks`."""
        found_NT: Array = np.logaddexp.reduceat(states_NF @ self._weight_FM + self._bias_M, self._first_T, axis=1)
        return found_NT

    def is_unknown(self, states_NF: Array, task: str) -> list[bool]:
        """Return for each row whether it is farther from a task than the task's validation rows were.

        Raises:
            StoreError: if the task's sums are not those that were certified.
        """
        if task not in self._known:
            own = self._sums_of(task)
            self._known[task] = own, own.precision()
            if len(self._known) > MAX_PRECISIONS:
                self._known.popitem(last=False)
        self._known.move_to_end(task)
        own, precision_FF = self._known[task]
        threshold = float(np.interp(KNOWN, QUANTILES, own.distances_Q))
        return [bool(far) for far in own.distances(states_NF, precision_FF) > threshold]


def probabilities(scores_NT: Array) -> Array:
    """Return the probability of each task: a softmax."""
    shifted_NT = np.exp(scores_NT - scores_NT.max(1, keepdims=True))
    whole_NT: Array = shifted_NT / shifted_NT.sum(1, keepdims=True)
    return whole_NT
