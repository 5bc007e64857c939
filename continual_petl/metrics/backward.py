"""What learning a task does to the tasks before it: backward transfer and forgetting.

Papers and their code disagree on the divisor, on which earlier score counts, and on the sign, so every variant has its
own name here:

* Lopez-Paz & Ranzato 2017 (GEM, https://arxiv.org/abs/1706.08840): ``bwt_gem``; their code divides by T:
  ``bwt_gem_code``.
* Diaz-Rodriguez et al. 2018 (https://arxiv.org/abs/1810.13166): ``bwt_tri``, ``bwt_plus``, ``rem``. Continuum
  leaves out the cells next to the diagonal in its releases up to 1.2.7, and swaps the names of the last two up to 1.0.26,
  commit 265a985 among them; since 1.0.27 they are right. Neither is repeated here.
* Chaudhry et al. 2018 (RWalk, https://arxiv.org/abs/1801.10112): ``forgetting_max``, ``forgetting_max_all_rows``.
* Avalanche eb075be: ``forgetting_first``.

Shape suffixes: T tasks; ``R_TT[i, j]`` is the score on task j after learning task i, NaN where never measured. Formulas
count tasks from 1. A NaN in a cell that a formula needs makes the result NaN, never 0; other cells are not looked at.
With one task there is nothing to look back at and every function here returns NaN. For the value after task k, pass
``R_TT[:k, :k]``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from continual_petl.metrics._checks import check_matrix


def bwt_gem(R_TT: Tensor) -> Tensor:
    """Backward transfer ``1/(T-1) sum_{i<T} (R[T, i] - R[i, i])``, as the GEM paper defines it.

    Args:
        R_TT: result matrix; the last row and the diagonal are used, without their common cell.

    Shape:
        ``(T, T)`` to ``()``, float64; NaN if T is 1.

    Raises:
        ValueError: if ``R_TT`` is no result matrix.

    Example:
        >>> R_TT = torch.tensor([[0.75, 0.25], [0.5, 1.0]], dtype=torch.float64)
        >>> bwt_gem(R_TT).item()
        -0.25
    """
    check_matrix(R_TT)
    return (R_TT[-1] - R_TT.diagonal())[:-1].mean()


def bwt_gem_code(R_TT: Tensor) -> Tensor:
    """Backward transfer divided by T, ``1/T sum_{i<T} (R[T, i] - R[i, i])``, as GEM's code (and SAPT's) computes it.

    It is smaller than ``bwt_gem`` by the factor (T-1)/T. For one task the code prints 0; here it is NaN like the rest.

    Args:
        R_TT: result matrix; the last row and the diagonal are used, without their common cell.

    Shape:
        ``(T, T)`` to ``()``, float64; NaN if T is 1.

    Raises:
        ValueError: if ``R_TT`` is no result matrix.

    Example:
        >>> R_TT = torch.tensor([[0.75, 0.25], [0.5, 1.0]], dtype=torch.float64)
        >>> bwt_gem_code(R_TT).item()
        -0.125
    """
    num_tasks = check_matrix(R_TT)
    return bwt_gem(R_TT) * ((num_tasks - 1) / num_tasks)


def bwt_tri(R_TT: Tensor) -> Tensor:
    """Backward transfer over the whole run ``sum_{j<i} (R[i, j] - R[j, j]) / (T(T-1)/2)`` (Diaz-Rodriguez).

    Args:
        R_TT: result matrix; the lower triangle is used, and the diagonal without its last cell.

    Shape:
        ``(T, T)`` to ``()``, float64; NaN if T is 1.

    Raises:
        ValueError: if ``R_TT`` is no result matrix.

    Example:
        >>> R_TT = torch.tensor([[0.75, 0, 0], [0.5, 1, 0], [0.75, 0.5, 1]], dtype=torch.float64)
        >>> bwt_tri(R_TT).item()
        -0.25
    """
    num_tasks = check_matrix(R_TT)
    rows, columns = torch.tril_indices(num_tasks, num_tasks, offset=-1, device=R_TT.device)
    return (R_TT[rows, columns] - R_TT[columns, columns]).mean()


def bwt_plus(R_TT: Tensor) -> Tensor:
    """Positive backward transfer ``BWT+ = max(bwt_tri, 0)`` (Diaz-Rodriguez).

    Args:
        R_TT: result matrix; the cells of ``bwt_tri`` are used.

    Shape:
        ``(T, T)`` to ``()``, float64; NaN if T is 1.

    Raises:
        ValueError: if ``R_TT`` is no result matrix.

    Example:
        >>> R_TT = torch.tensor([[0.75, 0.25], [0.5, 1.0]], dtype=torch.float64)
        >>> bwt_plus(R_TT).item()
        0.0
    """
    return bwt_tri(R_TT).clamp(min=0)


def rem(R_TT: Tensor) -> Tensor:
    """Remembering ``REM = 1 - |min(bwt_tri, 0)|`` (Diaz-Rodriguez); 1 means that nothing was lost on average.

    Args:
        R_TT: result matrix; the cells of ``bwt_tri`` are used.

    Shape:
        ``(T, T)`` to ``()``, float64; NaN if T is 1.

    Raises:
        ValueError: if ``R_TT`` is no result matrix.

    Example:
        >>> R_TT = torch.tensor([[0.75, 0.25], [0.5, 1.0]], dtype=torch.float64)
        >>> rem(R_TT).item()
        0.75
    """
    return 1 - bwt_tri(R_TT).clamp(max=0).abs()


def forgetting_max(R_TT: Tensor) -> Tensor:
    """Average drop from the best score since learning ``1/(T-1) sum_{j<T} (max_{j<=l<T} R[l, j] - R[T, j])``.

    Chaudhry et al. 2018 with the maximum taken from the task's own row on, which is what can be measured when a
    task's data arrives with the task. The formula as printed also looks at the rows before:
    ``forgetting_max_all_rows``.

    Args:
        R_TT: result matrix; the lower triangle with the diagonal is used, without its last cell.

    Shape:
        ``(T, T)`` to ``()``, float64; NaN if T is 1; negative if scores rose.

    Raises:
        ValueError: if ``R_TT`` is no result matrix.

    Example:
        >>> R_TT = torch.tensor([[0.5, 0, 0], [0.75, 1, 0], [0.25, 0.5, 1]], dtype=torch.float64)
        >>> forgetting_max(R_TT).item()
        0.5
    """
    num_tasks = check_matrix(R_TT)
    if num_tasks == 1:
        return R_TT.new_full((), torch.nan)
    before_TT = torch.ones_like(R_TT, dtype=torch.bool).triu(1)
    best_T = R_TT.masked_fill(before_TT, -torch.inf)[:-1, :-1].amax(0)
    return (best_T - R_TT[-1, :-1]).mean()


def forgetting_max_all_rows(R_TT: Tensor) -> Tensor:
    """Average drop from the best earlier score ``1/(T-1) sum_{j<T} (max_{1<=l<T} R[l, j] - R[T, j])``.

    Chaudhry et al. 2018 as printed: scores from before the task was learned count too, so those cells are needed.

    Args:
        R_TT: result matrix; all of it is used but the last column.

    Shape:
        ``(T, T)`` to ``()``, float64; NaN if T is 1.

    Raises:
        ValueError: if ``R_TT`` is no result matrix.

    Example:
        >>> R_TT = torch.tensor([[0.5, 1, 0], [0.75, 0.5, 0], [0.25, 0.5, 1]], dtype=torch.float64)
        >>> forgetting_max_all_rows(R_TT).item()
        0.5
    """
    num_tasks = check_matrix(R_TT)
    if num_tasks == 1:
        return R_TT.new_full((), torch.nan)
    return (R_TT[:-1, :-1].amax(0) - R_TT[-1, :-1]).mean()


def forgetting_first(R_TT: Tensor) -> Tensor:
    """Average drop from the score just after learning ``1/(T-1) sum_{j<T} (R[j, j] - R[T, j])`` (Avalanche).

    The negative of ``bwt_gem``; it misses what was gained after learning and lost again.

    Args:
        R_TT: result matrix; the last row and the diagonal are used, without their common cell.

    Shape:
        ``(T, T)`` to ``()``, float64; NaN if T is 1.

    Raises:
        ValueError: if ``R_TT`` is no result matrix.

    Example:
        >>> R_TT = torch.tensor([[0.75, 0.25], [0.5, 1.0]], dtype=torch.float64)
        >>> forgetting_first(R_TT).item()
        0.25
    """
    check_matrix(R_TT)
    return (R_TT.diagonal() - R_TT[-1])[:-1].mean()
