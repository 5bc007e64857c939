"""The router: two linear discriminants, one over the means of all labels and one over the means of all tasks.

Rows are assumed to be normally distributed around their mean m, with one covariance S for all means. The log-density of a
row is then, up to a constant, ``m' S^-1 x - m' S^-1 m / 2`` (McLachlan 1992, Discriminant Analysis and Statistical Pattern
Recognition, section 3.1). Over labels, a task is the mixture of its labels, weighted by their numbers of rows, and S is the
covariance around the label means; over tasks, S is the covariance around the task means. The score of a task is the mean of
both log-densities: the one over labels works better if all tasks have texts of the same kind, as parts of one data set do,
and the one over tasks if each task has its own kind of text. All tasks have the same prior probability. Rows are not normally
distributed, and the discriminants are too sure: all log-densities count only a fifth (`CONFIDENCE`), which was chosen on
validation rows of five streams.

S is mixed with a scaled identity (shrinkage). The weight of the identity is ``(F / N)^2 / 2``, limited to the range
`SHRINKAGES`; this rule was chosen on validation rows.

Shape suffixes: N rows, F features per row, T tasks, M label means.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

import numpy as np
import torch

from continual_petl.errors import StoreError
from continual_petl.router.sums import ONE, Array, TaskSums, shrunk, square
from continual_petl.router.totals import Totals

SHRINKAGES = (0.001, 0.3)
"""Smallest and largest weight of the scaled identity in a shared covariance."""
CONFIDENCE = 0.2
"""By how much differences of log-densities count in probabilities; in runs of earlier releases, they count whole."""
MAX_KEPT = 128
"""Maximum number of tasks whose statistics are kept in memory, about 2 MB each."""
FEW = 4
"""Up to this many means per feature, S^-1 m of each is computed when a run is opened: rows then take the least time."""
NUM_AT_ONCE = 2048
"""Number of means that are read at once."""


class Router:
    """Scores how well rows fit each of several tasks.

    Args:
        totals: the routing statistics of the tasks, added up; at least one task must have some.
        sums_of: returns the statistics of one task, which are only needed to tell whether a row is one of its own.
    """

    def __init__(self, totals: Totals, sums_of: Callable[[str], TaskSums | None]) -> None:
        assert totals.total_U is not None
        self.tasks = tuple(sorted(totals.means))
        self.layers = totals.layers
        self._sums_of = sums_of
        self._kept: OrderedDict[str, TaskSums] = OrderedDict()
        self._confidence = 1.0 if totals.first_format else CONFIDENCE
        counts_M, means_MF, self._first_T = totals.stacked()
        ends_T = np.append(self._first_T[1:], len(counts_M))
        count_T = np.add.reduceat(counts_M, self._first_T)
        means_TF = np.stack(
            [counts_M[first:end] @ means_MF[first:end] for first, end in zip(self._first_T, ends_T, strict=True)]
        )
        means_TF /= count_T[:, None]
        task_M = np.repeat(np.arange(len(self.tasks)), ends_T - self._first_T)
        within_FF = square(totals.total_U) / (ONE * totals.num_rows)
        between_FF = np.zeros_like(within_FF)
        for own in _parts(len(means_MF)):
            apart_MF = means_MF[own] - means_TF[task_M[own]]
            apart_MF *= np.sqrt(counts_M[own])[:, None]
            between_FF += apart_MF.T @ apart_MF
        between_FF /= totals.num_rows
        weight = shrinkage(totals.num_rows, means_MF.shape[1])
        self._of_labels = Discriminant(shrunk(within_FF, weight), means_MF, counts_M / count_T[task_M])
        self._of_tasks = Discriminant(shrunk(within_FF + between_FF, weight), means_TF)

    def scores(self, states_NF: Array) -> Array:
        """Return the log-probability of each task, up to a constant per row: ``(N, T)``, in the order of `tasks`."""
        labels_NT = np.logaddexp.reduceat(self._of_labels(states_NF), self._first_T, axis=1)
        found_NT: Array = (labels_NT + self._of_tasks(states_NF)) / 2
        return found_NT

    def probabilities(self, scores_NT: Array) -> Array:
        """Return the probability of each task: a softmax over the tasks' scores."""
        shifted_NT = np.exp(self._confidence * (scores_NT - scores_NT.max(1, keepdims=True)))
        whole_NT: Array = shifted_NT / shifted_NT.sum(1, keepdims=True)
        return whole_NT

    def label_scores(self, states_NF: Array, task: str) -> Array:
        """Return the log-density of rows around each mean of a task, up to a constant per row: ``(N, C)``."""
        number = self.tasks.index(task)
        own = slice(self._first_T[number], self._first_T[number + 1] if number + 1 < len(self.tasks) else None)
        scores_NC: Array = self._of_labels(states_NF, own)
        return scores_NC

    def sums(self, task: str) -> TaskSums:
        """Return a task's statistics.

        Raises:
            StoreError: if they are not the certified ones, or the task was replaced by one without any.
        """
        if task not in self._kept:
            own = self._sums_of(task)
            if own is None:
                raise StoreError(f"task {task!r} was replaced by one without routing statistics: try again.")
            self._kept[task] = own
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(task)
        return self._kept[task]


class Discriminant:
    """Linear discriminants of normal distributions with means m, one covariance S and prior probabilities p.

    Their values for a row x, ``m' S^-1 x - m' S^-1 m / 2 + log p``, are log-densities times priors, up to a constant per row.

    Args:
        covariance_FF: the covariance.
        means_MF: the means.
        priors_M: the prior probabilities.
    """

    def __init__(self, covariance_FF: Array, means_MF: Array, priors_M: Array | None = None) -> None:
        prior_M = np.zeros(len(means_MF)) if priors_M is None else np.log(priors_M)
        self._inverse_FF: Array | None = None
        if len(means_MF) <= FEW * len(covariance_FF):
            self._weight_FM = np.asarray(np.linalg.solve(covariance_FF, means_MF.T), dtype=np.float64)
            self._bias_M = prior_M - 0.5 * (means_MF.T * self._weight_FM).sum(0)
            return
        # S^-1 m of many means would take long to compute, so each row is multiplied by S^-1 instead.
        lower_FF = torch.from_numpy(np.linalg.cholesky(covariance_FF))
        self._inverse_FF, self._weight_FM = torch.cholesky_inverse(lower_FF).numpy(), means_MF.T
        self._bias_M = prior_M
        for own in _parts(len(means_MF)):
            # With S = L L', m' S^-1 m is the squared length of L^-1 m.
            white_FM = torch.linalg.solve_triangular(lower_FF, torch.from_numpy(self._weight_FM[:, own]), upper=False)
            self._bias_M[own] -= 0.5 * (white_FM**2).sum(0).numpy()

    def __call__(self, rows_NF: Array, own: slice = slice(None)) -> Array:
        """Return the values of all distributions, or only of some, for rows: ``(N, M)``."""
        read_NF = rows_NF if self._inverse_FF is None else rows_NF @ self._inverse_FF
        found_NM: Array = read_NF @ self._weight_FM[:, own] + self._bias_M[own]
        return found_NM


def _parts(num_means: int) -> Iterator[slice]:
    """Yield slices of means that are computed at once: not all of them, which would take much memory."""
    for start in range(0, num_means, NUM_AT_ONCE):
        yield slice(start, start + NUM_AT_ONCE)


def shrinkage(num_rows: int, width: int) -> float:
    """Return the weight of the scaled identity in a covariance of ``num_rows`` rows.

    Example:
        >>> shrinkage(2_304, 1_152), shrinkage(1_000_000, 1_152), shrinkage(100, 1_152)
        (0.125, 0.001, 0.3)
    """
    least, most = SHRINKAGES
    return min(most, max(least, (width / num_rows) ** 2 / 2))
