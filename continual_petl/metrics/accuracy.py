"""Accuracy of the learner: averages of the result matrix.

Sources: Lopez-Paz & Ranzato 2017 (GEM, https://arxiv.org/abs/1706.08840), Riemer et al. 2019 (MER,
https://arxiv.org/abs/1810.11910), Diaz-Rodriguez et al. 2018 (https://arxiv.org/abs/1810.13166), Rebuffi et al. 2017 (iCaRL,
https://arxiv.org/abs/1611.07725).

Shape suffixes: T tasks; ``R_TT[i, j]`` is the score on task j after learning task i, NaN where never measured. Formulas
number tasks from 1. A NaN in a cell that a formula needs makes the result NaN; other cells are ignored.
"""

from __future__ import annotations

import numpy as np

from continual_petl.metrics.arrays import Scores, like, matrix, mean
from continual_petl.metrics.registry import matrix_metric


@matrix_metric
def acc(R_TT: Scores) -> Scores:
    """Average final score: ``ACC = 1/T sum_i R[T, i]`` (GEM).

    Args:
        R_TT: result matrix; the last row is used.

    Shape:
        ``(T, T)`` to ``()``, float64.

    Raises:
        ValueError: if ``R_TT`` is not a result matrix.

    Example:
        >>> R_TT = np.array([[0.75, 0.25], [0.5, 1.0]])
        >>> acc(R_TT).item()
        0.75
    """
    return like(R_TT, mean(matrix(R_TT)[-1]))


@matrix_metric
def learning_accuracy(R_TT: Scores) -> Scores:
    """Average score just after learning: ``LA = 1/T sum_i R[i, i]`` (MER; GEM's code calls it diagonal accuracy).

    SAPT's ``Fwt`` is this value minus a hard-coded constant.

    Args:
        R_TT: result matrix; the diagonal is used.

    Shape:
        ``(T, T)`` to ``()``, float64.

    Raises:
        ValueError: if ``R_TT`` is not a result matrix.

    Example:
        >>> R_TT = np.array([[0.75, 0.25], [0.5, 1.0]])
        >>> learning_accuracy(R_TT).item()
        0.875
    """
    return like(R_TT, mean(matrix(R_TT).diagonal()))


@matrix_metric
def average_accuracy_tri(R_TT: Scores) -> Scores:
    """Average score over the whole run: ``A = sum_{i>=j} R[i, j] / (T(T+1)/2)`` (Diaz-Rodriguez).

    Args:
        R_TT: result matrix; the lower triangle with the diagonal is used.

    Shape:
        ``(T, T)`` to ``()``, float64.

    Raises:
        ValueError: if ``R_TT`` is not a result matrix.

    Example:
        >>> R_TT = np.array([[0.75, 0.25], [0.5, 1.0]])
        >>> average_accuracy_tri(R_TT).item()
        0.75
    """
    scores_TT = matrix(R_TT)
    return like(R_TT, mean(scores_TT[np.tril_indices_from(scores_TT)]))


@matrix_metric
def average_incremental_accuracy(R_TT: Scores) -> Scores:
    """Mean over all steps of the average score so far: ``1/T sum_i (1/i sum_{j<=i} R[i, j])`` (iCaRL).

    Args:
        R_TT: result matrix; the lower triangle with the diagonal is used.

    Shape:
        ``(T, T)`` to ``()``, float64.

    Raises:
        ValueError: if ``R_TT`` is not a result matrix.

    Example:
        >>> R_TT = np.array([[0.75, 0.25], [0.5, 1.0]])
        >>> average_incremental_accuracy(R_TT).item()
        0.75
    """
    scores_TT = matrix(R_TT)
    return like(R_TT, mean(np.array([mean(row_T[: i + 1]) for i, row_T in enumerate(scores_TT)])))
