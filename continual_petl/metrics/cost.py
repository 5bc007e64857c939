"""What the learner costs: the efficiency criteria of Diaz-Rodriguez et al. 2018 (https://arxiv.org/abs/1810.13166).

Each is 1 at best. The ``min(1, .)`` in the formulas is the paper's own: a learner that shrinks gains nothing.

Shape suffixes: T tasks, C criteria. All arguments are float64; a NaN makes the result NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from continual_petl.metrics._checks import check_positive, check_vector


def ms(memory_T: Tensor) -> Tensor:
    """Model size efficiency ``MS = min(1, 1/T sum_i Mem(theta[1]) / Mem(theta[i]))``.

    Args:
        memory_T: size of the whole model (backbone and all banks so far) after each task, in any one unit.

    Shape:
        ``(T,)`` to ``()``, float64.

    Raises:
        ValueError: if ``memory_T`` is no vector of positive numbers.

    Example:
        >>> ms(torch.tensor([1.0, 2.0, 4.0, 4.0], dtype=torch.float64)).item()
        0.5
    """
    check_vector(memory_T, "memory_T")
    check_positive(memory_T, "memory_T")
    return (memory_T[0] / memory_T).mean().clamp(max=1)


def sss(memory_T: Tensor, data_memory: float) -> Tensor:
    """Samples storage size efficiency ``SSS = 1 - min(1, 1/T sum_i Mem(M[i]) / Mem(D))``.

    Args:
        memory_T: size of the examples kept after each task; zeros for a learner that keeps none.
        data_memory: size of the examples of all tasks together, in the same unit.

    Shape:
        ``(T,)`` to ``()``, float64.

    Raises:
        ValueError: if ``memory_T`` is no vector of numbers >= 0, or ``data_memory`` is not positive.

    Example:
        >>> sss(torch.tensor([0.0, 1.0], dtype=torch.float64), 2.0).item()
        0.75
    """
    check_vector(memory_T, "memory_T")
    check_positive(memory_T, "memory_T", zero=True)
    if not data_memory > 0:
        raise ValueError(f"data_memory is {data_memory}; allowed is > 0, the size of all tasks' examples")
    return 1 - (memory_T / data_memory).mean().clamp(max=1)


def ce(pass_ops_T: Tensor, learn_ops_T: Tensor, epsilon: float) -> Tensor:
    """Computational efficiency ``CE = min(1, 1/T sum_i epsilon Ops_pass(Tr[i]) / (1 + Ops_learn(Tr[i])))``.

    Args:
        pass_ops_T: operations of one forward and backward pass over each task's training set.
        learn_ops_T: operations that learning each task took in all.
        epsilon: the paper's scale; with the number of epochs, plain training scores about 1.

    Shape:
        ``(T,)``, ``(T,)`` to ``()``, float64.

    Raises:
        ValueError: if a vector has another length or a negative number, or ``epsilon`` is not positive.

    Example:
        >>> ce(torch.tensor([10.0], dtype=torch.float64), torch.tensor([39.0], dtype=torch.float64), epsilon=2.0).item()
        0.5
    """
    length = check_vector(pass_ops_T, "pass_ops_T")
    if check_vector(learn_ops_T, "learn_ops_T") != length:
        raise ValueError(f"learn_ops_T has shape {tuple(learn_ops_T.shape)}; pass_ops_T has {tuple(pass_ops_T.shape)}")
    check_positive(pass_ops_T, "pass_ops_T", zero=True)
    check_positive(learn_ops_T, "learn_ops_T", zero=True)
    if not epsilon > 0:
        raise ValueError(f"epsilon is {epsilon}; allowed is > 0")
    return (epsilon * pass_ops_T / (1 + learn_ops_T)).mean().clamp(max=1)


def cl_score(criteria_C: Tensor, weights_C: Tensor) -> Tensor:
    """Sum up criteria as ``CL_score = sum_i w[i] c[i]``.

    Args:
        criteria_C: the criteria, such as ``average_accuracy_tri``, ``rem``, ``bwt_plus``, ``ms``.
        weights_C: how much each counts; not negative, together 1.

    Shape:
        ``(C,)``, ``(C,)`` to ``()``, float64.

    Raises:
        ValueError: if the lengths differ, or the weights are negative or do not add up to 1.

    Example:
        >>> half_C = torch.tensor([0.5, 0.5], dtype=torch.float64)
        >>> cl_score(torch.tensor([1.0, 0.5], dtype=torch.float64), half_C).item()
        0.75
    """
    _check_weights(weights_C, check_vector(criteria_C, "criteria_C"))
    return (weights_C * criteria_C).sum()


def cl_stability(deviations_C: Tensor, weights_C: Tensor) -> Tensor:
    """Sum up how little criteria vary from run to run as ``CL_stability = 1 - sum_i w[i] std(c[i])``.

    Args:
        deviations_C: standard deviation of each criterion over the runs.
        weights_C: how much each counts; not negative, together 1.

    Shape:
        ``(C,)``, ``(C,)`` to ``()``, float64.

    Raises:
        ValueError: if the lengths differ, a deviation is negative, or the weights do not add up to 1.

    Example:
        >>> half_C = torch.tensor([0.5, 0.5], dtype=torch.float64)
        >>> cl_stability(torch.tensor([0.0, 0.5], dtype=torch.float64), half_C).item()
        0.75
    """
    _check_weights(weights_C, check_vector(deviations_C, "deviations_C"))
    check_positive(deviations_C, "deviations_C", zero=True)
    return 1 - (weights_C * deviations_C).sum()


def _check_weights(weights_C: Tensor, length: int) -> None:
    if check_vector(weights_C, "weights_C") != length:
        raise ValueError(f"weights_C has shape {tuple(weights_C.shape)}; allowed is ({length},), one per criterion")
    check_positive(weights_C, "weights_C", zero=True)
    if not torch.isclose(weights_C.sum(), weights_C.new_ones(()), rtol=0, atol=1e-9):
        raise ValueError(f"weights_C add up to {weights_C.sum().item()}; allowed is 1: divide them by their sum")
