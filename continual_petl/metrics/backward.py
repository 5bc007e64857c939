"""Effects of learning a task on earlier tasks: backward transfer and forgetting.

Papers and their code disagree on the divisor, on which earlier score counts, and on the sign, so every variant has its
own name here:

* Lopez-Paz & Ranzato 2017 (GEM, https://arxiv.org/abs/1706.08840): ``bwt_gem``; their code divides by T:
  ``bwt_gem_code``.
* Diaz-Rodriguez et al. 2018 (https://arxiv.org/abs/1810.13166): ``bwt_tri``, ``bwt_plus``, ``rem``. Continuum
  leaves out the cells next to the diagonal in its releases up to 1.2.7, and swaps the names of the last two up to 1.0.26,
  including commit 265a985; since 1.0.27 the names are right. Neither mistake is repeated here.
* Chaudhry et al. 2018 (RWalk, https://arxiv.org/abs/1801.10112): ``forgetting_max``, ``forgetting_max_all_rows``.
* Avalanche eb075be: ``forgetting_first``.

Shape suffixes: T tasks; ``R_TT[i, j]`` is the score on task j after learning task i, NaN where never measured. Formulas
number tasks from 1. A NaN in a cell that a formula needs makes the result NaN, never 0; other cells are ignored.
With one task there are no earlier tasks, and every function here returns NaN. For the value after task k, pass
``R_TT[:k, :k]``.
"""

from __future__ import annotations

import math

import numpy as np

from continual_petl.metrics.arrays import Array, Scores, like, matrix, mean
from continual_petl.metrics.registry import matrix_metric


@matrix_metric
def bwt_gem(R_TT: Scores) -> Scores:
    """Backward transfer: ``1/(T-1) sum_{i<T} (R[T, i] - R[i, i])`` (GEM paper).

    Args:
        R_TT: result matrix; the last row and the diagonal are used, except for the cell that they share.

    Shape:
        ``(T, T)`` to ``()``, float64; NaN if T is 1.

    Raises:
        ValueError: if ``R_TT`` is not a result matrix.

    Example:
        >>> R_TT = np.array([[0.75, 0.25], [0.5, 1.0]])
        >>> bwt_gem(R_TT).item()
        -0.25
    """
    scores_TT = matrix(R_TT)
    return like(R_TT, change_of_earlier(scores_TT[-1], scores_TT.diagonal()))


@matrix_metric
def bwt_gem_code(R_TT: Scores) -> Scores:
    """Backward transfer divided by T, as in GEM's and SAPT's code: ``1/T sum_{i<T} (R[T, i] - R[i, i])``.

    It is smaller than ``bwt_gem`` by the factor (T-1)/T. For one task the code prints 0; here it is NaN, as in all metrics.

    Args:
        R_TT: result matrix; the last row and the diagonal are used, except for the cell that they share.

    Shape:
        ``(T, T)`` to ``()``, float64; NaN if T is 1.

    Raises:
        ValueError: if ``R_TT`` is not a result matrix.

    Example:
        >>> R_TT = np.array([[0.75, 0.25], [0.5, 1.0]])
        >>> bwt_gem_code(R_TT).item()
        -0.125
    """
    return like(R_TT, float(bwt_gem(R_TT)) * ((len(R_TT) - 1) / len(R_TT)))


@matrix_metric
def bwt_tri(R_TT: Scores) -> Scores:
    """Backward transfer over the whole run: ``sum_{j<i} (R[i, j] - R[j, j]) / (T(T-1)/2)`` (Diaz-Rodriguez).

    Args:
        R_TT: result matrix; the cells below the diagonal are used, and the diagonal except for its last cell.

    Shape:
        ``(T, T)`` to ``()``, float64; NaN if T is 1.

    Raises:
        ValueError: if ``R_TT`` is not a result matrix.

    Example:
        >>> R_TT = np.array([[0.75, 0, 0], [0.5, 1, 0], [0.75, 0.5, 1]])
        >>> bwt_tri(R_TT).item()
        -0.25
    """
    scores_TT = matrix(R_TT)
    rows, columns = np.tril_indices_from(scores_TT, -1)
    return like(R_TT, mean(scores_TT[rows, columns] - scores_TT[columns, columns]))


@matrix_metric
def bwt_plus(R_TT: Scores) -> Scores:
    """Positive backward transfer: ``BWT+ = max(bwt_tri, 0)`` (Diaz-Rodriguez).

    Args:
        R_TT: result matrix; the cells of ``bwt_tri`` are used.

    Shape:
        ``(T, T)`` to ``()``, float64; NaN if T is 1.

    Raises:
        ValueError: if ``R_TT`` is not a result matrix.

    Example:
        >>> R_TT = np.array([[0.75, 0.25], [0.5, 1.0]])
        >>> bwt_plus(R_TT).item()
        0.0
    """
    return like(R_TT, float(bwt_tri(R_TT).clip(min=0)))


@matrix_metric
def rem(R_TT: Scores) -> Scores:
    """Remembering: ``REM = 1 - |min(bwt_tri, 0)|`` (Diaz-Rodriguez); 1 means that nothing was lost on average.

    Args:
        R_TT: result matrix; the cells of ``bwt_tri`` are used.

    Shape:
        ``(T, T)`` to ``()``, float64; NaN if T is 1.

    Raises:
        ValueError: if ``R_TT`` is not a result matrix.

    Example:
        >>> R_TT = np.array([[0.75, 0.25], [0.5, 1.0]])
        >>> rem(R_TT).item()
        0.75
    """
    return like(R_TT, 1 - abs(float(bwt_tri(R_TT).clip(max=0))))


@matrix_metric
def forgetting_max(R_TT: Scores) -> Scores:
    """Average drop from the best score since task j was learned: ``1/(T-1) sum_{j<T} (max_{j<=l<T} R[l, j] - R[T, j])``.

    Chaudhry et al. 2018, except that the maximum starts at row j: earlier cells cannot be measured if a task's data
    arrives with the task. For the formula as printed, which includes earlier rows, see ``forgetting_max_all_rows``.

    Args:
        R_TT: result matrix; the lower triangle with the diagonal is used, except for the last cell of the diagonal.

    Shape:
        ``(T, T)`` to ``()``, float64; NaN if T is 1; negative if scores rose.

    Raises:
        ValueError: if ``R_TT`` is not a result matrix.

    Example:
        >>> R_TT = np.array([[0.5, 0, 0], [0.75, 1, 0], [0.25, 0.5, 1]])
        >>> forgetting_max(R_TT).item()
        0.5
    """
    scores_TT = matrix(R_TT)
    if len(scores_TT) == 1:
        return like(R_TT, math.nan)
    since_TT = np.where(np.tri(len(scores_TT), dtype=bool), scores_TT, -np.inf)
    return like(R_TT, mean(since_TT[:-1, :-1].max(0) - scores_TT[-1, :-1]))


@matrix_metric
def forgetting_max_all_rows(R_TT: Scores) -> Scores:
    """Average drop from the best earlier score: ``1/(T-1) sum_{j<T} (max_{1<=l<T} R[l, j] - R[T, j])``.

    Chaudhry et al. 2018 as printed: scores from before the task was learned count too, so those cells are needed.

    Args:
        R_TT: result matrix; all columns but the last are used.

    Shape:
        ``(T, T)`` to ``()``, float64; NaN if T is 1.

    Raises:
        ValueError: if ``R_TT`` is not a result matrix.

    Example:
        >>> R_TT = np.array([[0.5, 1, 0], [0.75, 0.5, 0], [0.25, 0.5, 1]])
        >>> forgetting_max_all_rows(R_TT).item()
        0.5
    """
    scores_TT = matrix(R_TT)
    if len(scores_TT) == 1:
        return like(R_TT, math.nan)
    return like(R_TT, mean(scores_TT[:-1, :-1].max(0) - scores_TT[-1, :-1]))


@matrix_metric
def forgetting_first(R_TT: Scores) -> Scores:
    """Average drop from the score just after learning: ``1/(T-1) sum_{j<T} (R[j, j] - R[T, j])`` (Avalanche).

    The negative of ``bwt_gem``; it misses gains after learning that were lost again.

    Args:
        R_TT: result matrix; the last row and the diagonal are used, except for the cell that they share.

    Shape:
        ``(T, T)`` to ``()``, float64; NaN if T is 1.

    Raises:
        ValueError: if ``R_TT`` is not a result matrix.

    Example:
        >>> R_TT = np.array([[0.75, 0.25], [0.5, 1.0]])
        >>> forgetting_first(R_TT).item()
        0.25
    """
    scores_TT = matrix(R_TT)
    return like(R_TT, change_of_earlier(scores_TT.diagonal(), scores_TT[-1]))


def change_of_earlier(final_T: Array, own_T: Array) -> float:
    """Return the mean change of all scores but the newest: ``bwt_gem`` for long runs, whose R is too large for memory."""
    return mean((final_T - own_T)[:-1])
