"""Cost of the learner: the efficiency criteria of Diaz-Rodriguez et al. 2018 (https://arxiv.org/abs/1810.13166).

The best value of each is 1. The ``min(1, .)`` in the formulas is from the paper: shrinking the model gains nothing.

Shape suffixes: T tasks, C criteria. All arguments are float64; a NaN makes the result NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from continual_petl.metrics.arrays import Array, Scores, check_positive, like, mean, vector

if TYPE_CHECKING:
    from torch import Tensor


def ms(memory_T: Scores) -> Scores:
    """Model size efficiency: ``MS = min(1, 1/T sum_i Mem(theta[1]) / Mem(theta[i]))``.

    Args:
        memory_T: size of the whole model (backbone and all banks so far) after each task, in any unit.

    Shape:
        ``(T,)`` to ``()``, float64.

    Raises:
        ValueError: if ``memory_T`` is not a vector of positive numbers.

    Example:
        >>> ms(np.array([1.0, 2.0, 4.0, 4.0])).item()
        0.5
    """
    size_T = vector(memory_T, "memory_T")
    check_positive(size_T, "memory_T")
    return like(memory_T, _at_most_1(size_T[0] / size_T))


def sss(memory_T: Scores, data_memory: float) -> Scores:
    """Samples storage size efficiency: ``SSS = 1 - min(1, 1/T sum_i Mem(M[i]) / Mem(D))``.

    Args:
        memory_T: size of the examples kept after each task; zeros for a learner that keeps none.
        data_memory: size of the examples of all tasks together, in the same unit.

    Shape:
        ``(T,)`` to ``()``, float64.

    Raises:
        ValueError: if ``memory_T`` is not a vector of numbers >= 0, or ``data_memory`` is not positive.

    Example:
        >>> sss(np.array([0.0, 1.0]), 2.0).item()
        0.75
    """
    kept_T = vector(memory_T, "memory_T")
    check_positive(kept_T, "memory_T", zero=True)
    if not data_memory > 0:
        raise ValueError(f"data_memory is {data_memory}, but must be > 0: it is the size of all tasks' examples")
    return like(memory_T, 1 - _at_most_1(kept_T / data_memory))


def ce(pass_ops_T: Scores, learn_ops_T: Scores, epsilon: float) -> Scores:
    """Computational efficiency: ``CE = min(1, 1/T sum_i epsilon Ops_pass(Tr[i]) / (1 + Ops_learn(Tr[i])))``.

    Args:
        pass_ops_T: operations of one forward and backward pass over each task's training set.
        learn_ops_T: total number of operations that learning each task took.
        epsilon: the paper's scale; if it is the number of epochs, plain training scores about 1.

    Shape:
        ``(T,)``, ``(T,)`` to ``()``, float64.

    Raises:
        ValueError: if the lengths differ, a number is negative, or ``epsilon`` is not positive.

    Example:
        >>> ce(np.array([10.0]), np.array([39.0]), epsilon=2.0).item()
        0.5
    """
    pass_T, learn_T = vector(pass_ops_T, "pass_ops_T"), vector(learn_ops_T, "learn_ops_T")
    if len(pass_T) != len(learn_T):
        raise ValueError(
            f"learn_ops_T has shape {tuple(learn_ops_T.shape)}, but pass_ops_T has {tuple(pass_ops_T.shape)}"
        )
    check_positive(pass_T, "pass_ops_T", zero=True)
    check_positive(learn_T, "learn_ops_T", zero=True)
    if not epsilon > 0:
        raise ValueError(f"epsilon is {epsilon}, but must be > 0")
    return like(pass_ops_T, _at_most_1(epsilon * pass_T / (1 + learn_T)))


def cl_score(criteria_C: Scores, weights_C: Scores) -> Scores:
    """Weighted sum of criteria: ``CL_score = sum_i w[i] c[i]``.

    Args:
        criteria_C: the criteria, such as ``average_accuracy_tri``, ``rem``, ``bwt_plus``, ``ms``.
        weights_C: the weight of each; non-negative, with a sum of 1.

    Shape:
        ``(C,)``, ``(C,)`` to ``()``, float64.

    Raises:
        ValueError: if the lengths differ, or the weights are negative or do not add up to 1.

    Example:
        >>> half_C = np.array([0.5, 0.5])
        >>> cl_score(np.array([1.0, 0.5]), half_C).item()
        0.75
    """
    values_C = vector(criteria_C, "criteria_C")
    return like(criteria_C, float((_weights(weights_C, len(values_C)) * values_C).sum()))


def cl_stability(deviations_C: Scores, weights_C: Scores) -> Scores:
    """Stability of criteria from run to run: ``CL_stability = 1 - sum_i w[i] std(c[i])``.

    Args:
        deviations_C: standard deviation of each criterion over the runs.
        weights_C: the weight of each; non-negative, with a sum of 1.

    Shape:
        ``(C,)``, ``(C,)`` to ``()``, float64.

    Raises:
        ValueError: if the lengths differ, a deviation is negative, or the weights do not add up to 1.

    Example:
        >>> half_C = np.array([0.5, 0.5])
        >>> cl_stability(np.array([0.0, 0.5]), half_C).item()
        0.75
    """
    values_C = vector(deviations_C, "deviations_C")
    weighted_C = _weights(weights_C, len(values_C)) * values_C
    check_positive(values_C, "deviations_C", zero=True)
    return like(deviations_C, 1 - float(weighted_C.sum()))


def _at_most_1(values_T: Array) -> float:
    return float(np.minimum(mean(values_T), 1))  # keeps NaN


def _weights(weights_C: Tensor | Array, length: int) -> Array:
    found_C = vector(weights_C, "weights_C")
    if len(found_C) != length:
        raise ValueError(f"weights_C has shape {found_C.shape}, but must have shape ({length},), one per criterion")
    check_positive(found_C, "weights_C", zero=True)
    if not abs(found_C.sum() - 1) <= 1e-9:
        raise ValueError(f"weights_C add up to {found_C.sum().item()}, but must add up to 1: divide them by their sum")
    return found_C
