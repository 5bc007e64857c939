"""What every metric asks of its arguments, checked once and at the border.

A score is finite, or NaN for "never measured". Infinities are refused because ``inf - inf`` would turn a mistake into
"never measured"; other dtypes are refused because a rounded score can turn "nothing changed" into a tiny change.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _check_dtype_and_values(values: Tensor, name: str) -> None:
    if values.dtype != torch.float64:
        raise ValueError(f"{name} has dtype {values.dtype}; metrics take torch.float64: pass {name}.double()")
    if torch.isinf(values).any():
        where = torch.isinf(values).nonzero()[0].tolist()
        raise ValueError(f"{name}{where} is infinite; values are finite, or NaN where nothing was measured")


def check_matrix(R_TT: Tensor) -> int:
    """Return the number of tasks T of a result matrix.

    Raises:
        ValueError: if ``R_TT`` is not square, is empty, is not float64 or holds an infinity.
    """
    if R_TT.ndim != 2 or R_TT.shape[0] != R_TT.shape[1] or R_TT.shape[0] == 0:
        raise ValueError(
            f"R_TT has shape {tuple(R_TT.shape)}; a result matrix is (T, T) with T >= 1, R_TT[i, j] the score on task "
            "j after learning task i; after k of T tasks pass R_TT[:k, :k]"
        )
    _check_dtype_and_values(R_TT, "R_TT")
    return R_TT.shape[0]


def check_vector(values_T: Tensor, name: str, length: int | None = None) -> int:
    """Return the length of a vector with one value per task; ``length`` is what it has to be, if known.

    Raises:
        ValueError: if ``values_T`` is not a vector of that length, is empty, is not float64 or holds an infinity.
    """
    wanted = "(T,) with T >= 1" if length is None else f"({length},), one value per task of R_TT"
    if values_T.ndim != 1 or values_T.shape[0] == 0 or (length is not None and values_T.shape[0] != length):
        raise ValueError(f"{name} has shape {tuple(values_T.shape)}; allowed is {wanted}")
    _check_dtype_and_values(values_T, name)
    return values_T.shape[0]


def check_positive(values: Tensor, name: str, *, zero: bool = False) -> None:
    """Refuse negative numbers, and zeros unless ``zero``; NaN passes.

    Raises:
        ValueError: naming the first number outside the range.
    """
    wrong = values < 0 if zero else values <= 0
    if wrong.any():
        where = wrong.nonzero()[0].tolist()
        raise ValueError(f"{name}{where} is {values[tuple(where)].item()}; allowed is {'>=' if zero else '>'} 0")
