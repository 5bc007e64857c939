"""The router: a linear discriminant over the means of all tasks, with one covariance that they share.

The rows of each label are taken to be distributed normally around their mean m, with one covariance S for all labels. The
log-density of a row is then, up to a constant, ``m' S^-1 x - m' S^-1 m / 2`` (McLachlan 1992, Discriminant Analysis and
Statistical Pattern Recognition, section 3.1). That of a task is the mixture of its labels, weighed by their numbers of rows.
All tasks have the same prior probability. S is the mean over all rows of the tasks' covariances, mixed with a scaled
identity.

Shape suffixes: N rows, F numbers of a row, T tasks, M means of all tasks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from continual_petl.router.sums import ONE, QUANTILES, Array, TaskSums, shrunk, square

SHRINKAGE = 0.003
"""Weight of the scaled identity in the shared covariance."""
KNOWN = 0.99
"""Share of a task's validation rows that are nearer than its threshold; a row beyond that is unknown."""
MAX_PRECISIONS = 32
"""How many tasks' inverse covariances are kept in memory."""


class Router:
    """Scores rows for each of some tasks.

    Args:
        sums: of each task, by name.

    Raises:
        ValueError: if there are none, or they were computed from different layers.
    """

    def __init__(self, sums: Mapping[str, TaskSums]) -> None:
        if not sums:
            raise ValueError("a router needs the sums of at least one task")
        if len({(own.layers, own.means_CF.shape[1]) for own in sums.values()}) > 1:
            raise ValueError("the sums of all tasks must be of the same layers")
        self.tasks = tuple(sorted(sums))
        self.layers = sums[self.tasks[0]].layers
        self._sums = dict(sums)
        self._precisions: dict[str, Array] = {}
        total_U = np.zeros(sums[self.tasks[0]].covariance_U.shape, dtype=np.int64)
        for own in sums.values():
            total_U += own.count * own.covariance_U.astype(np.int64)
        num_rows = sum(own.count for own in sums.values())
        means_MF = np.concatenate([sums[task].means_CF for task in self.tasks])
        self._weight_FM = np.linalg.solve(shrunk(square(total_U) / (ONE * num_rows), SHRINKAGE), means_MF.T)
        shares_M = np.concatenate([sums[task].counts_C / sums[task].count for task in self.tasks])
        self._bias_M = np.log(shares_M) - 0.5 * (means_MF.T * self._weight_FM).sum(0)
        self._first_T = np.cumsum([0, *(len(sums[task].counts_C) for task in self.tasks[:-1])])

    def scores(self, states_NF: Array) -> Array:
        """Return the log-probability of each task, up to a constant per row: ``(N, T)``, in the order of `tasks`."""
        found_NT: Array = np.logaddexp.reduceat(states_NF @ self._weight_FM + self._bias_M, self._first_T, axis=1)
        return found_NT

    def is_unknown(self, states_NF: Array, task: str) -> list[bool]:
        """Return for each row whether it is farther from a task than its validation rows were."""
        own = self._sums[task]
        if task not in self._precisions:
            self._precisions[task] = own.precision()
            if len(self._precisions) > MAX_PRECISIONS:
                self._precisions.pop(next(iter(self._precisions)))
        threshold = float(np.interp(KNOWN, QUANTILES, own.distances_Q))
        return [bool(far) for far in own.distances(states_NF, self._precisions[task]) > threshold]


def probabilities(scores_NT: Array) -> Array:
    """Return the probability of each task: a softmax."""
    shifted_NT = np.exp(scores_NT - scores_NT.max(1, keepdims=True))
    whole_NT: Array = shifted_NT / shifted_NT.sum(1, keepdims=True)
    return whole_NT
