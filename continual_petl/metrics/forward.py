"""Effects of earlier tasks on later ones: forward transfer, and intransigence.

"Forward transfer" names three different things in the literature; each has its own name here:

* help before learning, compared with an untrained model: ``fwt_gem`` and, divided as in its authors' code, ``fwt_gem_code``
  (Lopez-Paz & Ranzato 2017, GEM, https://arxiv.org/abs/1706.08840);
* the plain zero-shot score: ``fwt_tri`` (Diaz-Rodriguez et al. 2018, https://arxiv.org/abs/1810.13166);
* the gain just after learning, compared with learning the task alone: ``fwt_plasticity`` (Wu et al. 2022 and most papers
  on language models since).

Chaudhry et al. 2018 (RWalk, https://arxiv.org/abs/1801.10112) measure a loss instead of this gain: ``intransigence``.

Shape suffixes: T tasks; ``R_TT[i, j]`` is the score on task j after learning task i, NaN where never measured. Formulas
number tasks from 1. A NaN in a cell that a formula needs makes the result NaN, never 0; other cells are ignored.
"""

from __future__ import annotations

import numpy as np

from continual_petl.metrics.arrays import Scores, like, matrix, mean, vector
from continual_petl.metrics.registry import matrix_metric, reference_metric


@reference_metric
def fwt_gem(R_TT: Scores, baseline_T: Scores) -> Scores:
    """Forward transfer: ``1/(T-1) sum_{i>1} (R[i-1, i] - b[i])`` (GEM paper).

    Args:
        R_TT: result matrix; the diagonal above the main one is used.
        baseline_T: score ``b[i]`` on each task before anything was learned; the first is not used.

    Shape:
        ``(T, T)``, ``(T,)`` to ``()``, float64; NaN if T is 1.

    Raises:
        ValueError: if ``R_TT`` is not a result matrix, or ``baseline_T`` does not have one value per task.

    Example:
        >>> R_TT = np.array([[0.75, 0.25], [0.5, 1.0]])
        >>> fwt_gem(R_TT, np.array([0.5, 0.5])).item()
        -0.25
    """
    scores_TT = matrix(R_TT)
    before_T = vector(baseline_T, "baseline_T", len(scores_TT))
    return like(R_TT, mean(scores_TT.diagonal(1) - before_T[1:]))


@reference_metric
def fwt_gem_code(R_TT: Scores, baseline_T: Scores) -> Scores:
    """Forward transfer divided by T, as in GEM's code: ``1/T sum_{i>1} (R[i-1, i] - b[i])``.

    For one task the code prints 0; here it is NaN, as in all metrics.

    Args:
        R_TT: result matrix; the diagonal above the main one is used.
        baseline_T: score ``b[i]`` on each task before anything was learned; the first is not used.

    Shape:
        ``(T, T)``, ``(T,)`` to ``()``, float64; NaN if T is 1.

    Raises:
        ValueError: if ``R_TT`` is not a result matrix, or ``baseline_T`` does not have one value per task.

    Example:
        >>> R_TT = np.array([[0.75, 0.25], [0.5, 1.0]])
        >>> fwt_gem_code(R_TT, np.array([0.5, 0.5])).item()
        -0.125
    """
    return like(R_TT, float(fwt_gem(R_TT, baseline_T)) * ((len(R_TT) - 1) / len(R_TT)))


@matrix_metric
def fwt_tri(R_TT: Scores) -> Scores:
    """Average zero-shot score over the whole run: ``sum_{i<j} R[i, j] / (T(T-1)/2)`` (Diaz-Rodriguez).

    No baseline is subtracted, so the value says as much about the tasks as about the learner.

    Args:
        R_TT: result matrix; the cells above the diagonal are used.

    Shape:
        ``(T, T)`` to ``()``, float64; NaN if T is 1.

    Raises:
        ValueError: if ``R_TT`` is not a result matrix.

    Example:
        >>> R_TT = np.array([[0.75, 0.25], [0.5, 1.0]])
        >>> fwt_tri(R_TT).item()
        0.25
    """
    scores_TT = matrix(R_TT)
    return like(R_TT, mean(scores_TT[np.triu_indices_from(scores_TT, 1)]))


@reference_metric
def fwt_plasticity(R_TT: Scores, single_T: Scores) -> Scores:
    """Gain over learning each task alone: ``1/(T-1) sum_{t>1} (R[t, t] - s[t])``.

    Args:
        R_TT: result matrix; the diagonal except for its first cell is used.
        single_T: score ``s[t]`` of a model that learned only task t; the first is not used.

    Shape:
        ``(T, T)``, ``(T,)`` to ``()``, float64; NaN if T is 1.

    Raises:
        ValueError: if ``R_TT`` is not a result matrix, or ``single_T`` does not have one value per task.

    Example:
        >>> R_TT = np.array([[0.75, 0.25], [0.5, 1.0]])
        >>> fwt_plasticity(R_TT, np.array([0.75, 0.75])).item()
        0.25
    """
    scores_TT = matrix(R_TT)
    alone_T = vector(single_T, "single_T", len(scores_TT))
    return like(R_TT, mean((scores_TT.diagonal() - alone_T)[1:]))


@reference_metric
def intransigence(R_TT: Scores, reference_T: Scores) -> Scores:
    """What the newest task loses by being learned last: ``I_T = a*[T] - R[T, T]`` (Chaudhry et al. 2018).

    Lower is better; a negative value means that the stream helped. For ``I_k`` pass ``R_TT[:k, :k]`` and ``reference_T[:k]``.

    Args:
        R_TT: result matrix; the last cell of the diagonal is used.
        reference_T: score ``a*[k]`` on task k of a model that learned tasks 1 to k together; the last is used.

    Shape:
        ``(T, T)``, ``(T,)`` to ``()``, float64.

    Raises:
        ValueError: if ``R_TT`` is not a result matrix, or ``reference_T`` does not have one value per task.

    Example:
        >>> R_TT = np.array([[0.75, 0.25], [0.5, 0.5]])
        >>> intransigence(R_TT, np.array([0.75, 0.75])).item()
        0.25
    """
    scores_TT = matrix(R_TT)
    return like(R_TT, float(vector(reference_T, "reference_T", len(scores_TT))[-1] - scores_TT[-1, -1]))


@reference_metric
def intransigence_mean(R_TT: Scores, reference_T: Scores) -> Scores:
    """Average of the intransigence over all tasks: ``1/T sum_k (a*[k] - R[k, k])``.

    Args:
        R_TT: result matrix; the diagonal is used.
        reference_T: score ``a*[k]`` on task k of a model that learned tasks 1 to k together.

    Shape:
        ``(T, T)``, ``(T,)`` to ``()``, float64.

    Raises:
        ValueError: if ``R_TT`` is not a result matrix, or ``reference_T`` does not have one value per task.

    Example:
        >>> R_TT = np.array([[0.75, 0.25], [0.5, 0.5]])
        >>> intransigence_mean(R_TT, np.array([0.75, 0.75])).item()
        0.125
    """
    scores_TT = matrix(R_TT)
    return like(R_TT, mean(vector(reference_T, "reference_T", len(scores_TT)) - scores_TT.diagonal()))
