"""Arguments and return values of all metrics, validated in one place.

Metrics compute in numpy, so that a report needs no torch; for tensors they return a tensor. numpy adds the same values in
the same order on every machine; torch does not guarantee this, since its order depends on the processor's vector width.

A score is finite, or NaN for "never measured". Infinities are refused because ``inf - inf`` would turn a mistake into
"never measured"; other dtypes are refused because a rounded score can turn "nothing changed" into a tiny change.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Array: TypeAlias = NDArray[np.float64]
Scores = TypeVar("Scores", "Tensor", "NDArray[np.float64]")
"""Tensors or numpy arrays: the result has the type of the argument."""


def matrix(R_TT: Tensor | Array) -> Array:
    """Return a result matrix as an array.

    Raises:
        ValueError: if ``R_TT`` is not square, is empty, is not float64 or holds an infinity.
    """
    if R_TT.ndim != 2 or R_TT.shape[0] != R_TT.shape[1] or R_TT.shape[0] == 0:
        raise ValueError(
            f"R_TT has shape {tuple(R_TT.shape)}; a result matrix is (T, T) with T >= 1, where R_TT[i, j] is the score "
            "on task j after learning task i; after k of T tasks, pass R_TT[:k, :k]"
        )
    return _finite(R_TT, "R_TT")


def vector(values_T: Tensor | Array, name: str, length: int | None = None) -> Array:
    """Check a vector with one value per task and return it as an array; ``length``, if given, is the required length.

    Raises:
        ValueError: if ``values_T`` is not a vector of that length, is empty, is not float64 or holds an infinity.
    """
    expected = "(T,) with T >= 1" if length is None else f"({length},), one value per task of R_TT"
    if values_T.ndim != 1 or values_T.shape[0] == 0 or (length is not None and values_T.shape[0] != length):
        raise ValueError(f"{name} has shape {tuple(values_T.shape)}, but must have shape {expected}")
    return _finite(values_T, name)


def check_positive(values: Array, name: str, *, zero: bool = False) -> None:
    """Refuse negative numbers, and zeros unless ``zero`` is true; NaN passes.

    Raises:
        ValueError: if there is such a number; the message names the first.
    """
    wrong = values < 0 if zero else values <= 0
    if wrong.any():
        where = np.argwhere(wrong)[0].tolist()
        raise ValueError(f"{name}{where} is {values[tuple(where)].item()}, but must be {'>=' if zero else '>'} 0")


def mean(values: Array) -> float:
    """Return the mean, NaN if there are no values."""
    return float(values.mean()) if values.size else math.nan


def like(given: Scores, value: float) -> Scores:
    """Return a metric's value with no dimensions: an array for arrays, or a tensor on the same device for tensors."""
    return np.array(value, dtype=np.float64) if isinstance(given, np.ndarray) else given.new_tensor(value)


def _finite(values: Tensor | Array, name: str) -> Array:
    if isinstance(values, np.ndarray):
        if values.dtype != np.float64:
            raise ValueError(f"{name} has dtype {values.dtype}; metrics take float64: pass {name}.astype(float)")
        array = values
    else:
        if str(values.dtype) != "torch.float64":
            raise ValueError(f"{name} has dtype {values.dtype}; metrics take torch.float64: pass {name}.double()")
        array = values.detach().cpu().numpy()
    if np.isinf(array).any():
        where = np.argwhere(np.isinf(array))[0].tolist()
        raise ValueError(f"{name}{where} is infinite; values must be finite, or NaN where nothing was measured")
    return array
