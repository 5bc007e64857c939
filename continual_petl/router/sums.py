"""What a task stores for the router: the mean and the covariance of its rows' states.

A task's sums depend on its own rows alone and never change. The covariance is stored in fixed point, as integers that count
multiples of 2^-30. The router weighs them by the number of rows and adds them as integers, which is exact in any order: it is
the same, bit for bit, in whatever order the tasks were learned, and a forgotten task leaves nothing behind.

A covariance is symmetric; only its upper triangle is stored.

Shape suffixes: N rows, K layers read, D width of the backbone, F = K * D, U = F * (F + 1) / 2, Q quantiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ONE = 2**30
"""Fixed-point value of 1; states have length one in each layer, so no covariance exceeds it."""
QUANTILES = np.linspace(0.0, 1.0, 201)
"""Of the distances of validation rows, from which the threshold for unknown rows is taken."""
OWN_SHRINKAGE = 0.2
"""Weight of the scaled identity in a task's own covariance."""
_DTYPES = {
    "layers_K": np.int64,
    "count": np.int64,
    "mean_F": np.float64,
    "covariance_U": np.int32,
    "distances_Q": np.float64,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskSums:
    """The sums of one task."""

    layers: tuple[int, ...]
    """Numbers of the layers that were read, counted from 1."""
    count: int
    """Number of rows."""
    mean_F: Array
    covariance_U: NDArray[np.int32]
    distances_Q: Array
    """Quantiles of the distances of validation rows from this task; see `distances`."""

    def __post_init__(self) -> None:
        width = len(self.mean_F)
        if not self.layers or width % len(self.layers) or self.count < 1:
            raise ValueError(f"{self.count} rows, a mean of {width} numbers, {len(self.layers)} layers")
        if self.covariance_U.shape != (width * (width + 1) // 2,) or self.distances_Q.shape != QUANTILES.shape:
            raise ValueError(f"covariance {self.covariance_U.shape} or quantiles {self.distances_Q.shape} do not fit")
        if not (np.isfinite(self.mean_F).all() and np.isfinite(self.distances_Q).all()):
            raise ValueError("a number is not finite")

    def precision(self) -> Array:
        """Return the inverse of the task's own covariance, ``(F, F)``."""
        covariance_FF = shrunk(square(self.covariance_U.astype(np.int64)) / ONE, OWN_SHRINKAGE)
        return np.asarray(np.linalg.inv(covariance_FF), dtype=np.float64)

    def distances(self, states_NF: Array, precision_FF: Array) -> Array:
        """Return the squared Mahalanobis distances of rows from this task, ``(N,)``."""
        centred_NF = states_NF - self.mean_F
        found: Array = ((centred_NF @ precision_FF) * centred_NF).sum(1)
        return found

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return everything as named arrays, as they are stored."""
        values = {
            "layers_K": self.layers,
            "count": self.count,
            "mean_F": self.mean_F,
            "covariance_U": self.covariance_U,
            "distances_Q": self.distances_Q,
        }
        return {name: np.asarray(value, dtype=_DTYPES[name]) for name, value in values.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> TaskSums:
        """Read what `to_arrays` returned.

        Raises:
            ValueError: if names, dtypes or shapes differ.
        """
        if {name: array.dtype for name, array in arrays.items()} != {
            name: np.dtype(own) for name, own in _DTYPES.items()
        }:
            raise ValueError(f"expected the arrays {', '.join(_DTYPES)} with their dtypes, got {', '.join(arrays)}")
        if arrays["layers_K"].ndim != 1 or arrays["mean_F"].ndim != 1 or arrays["count"].ndim != 0:
            raise ValueError("layers_K, mean_F or count has the wrong number of dimensions")
        return cls(
            layers=tuple(arrays["layers_K"].tolist()),
            count=int(arrays["count"]),
            mean_F=arrays["mean_F"].astype(np.float64),
            covariance_U=arrays["covariance_U"].astype(np.int32),
            distances_Q=arrays["distances_Q"].astype(np.float64),
        )


def sums_of(states_NF: Array, layers: tuple[int, ...], held_out_NF: Array) -> TaskSums:
    """Return the sums of a task's rows.

    Args:
        states_NF: states of its training rows, see `row_states`.
        layers: numbers of the layers that were read.
        held_out_NF: states of its validation rows; only quantiles of their distances are kept.
    """
    mean_F = states_NF.mean(0)
    centred_NF = states_NF - mean_F
    covariance_FF = centred_NF.T @ centred_NF / len(states_NF)
    upper_U = covariance_FF[np.triu_indices(len(mean_F))]
    sums = TaskSums(
        layers=layers,
        count=len(states_NF),
        mean_F=mean_F,
        covariance_U=np.rint(upper_U * ONE).astype(np.int32),
        distances_Q=np.zeros(QUANTILES.shape),
    )
    return replace(sums, distances_Q=np.quantile(sums.distances(held_out_NF, sums.precision()), QUANTILES))


def square(upper_U: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the symmetric matrix of an upper triangle."""
    width = int(np.sqrt(2 * len(upper_U)))
    whole_FF = np.zeros((width, width), dtype=upper_U.dtype)
    whole_FF[np.triu_indices(width)] = upper_U
    return whole_FF + np.triu(whole_FF, 1).T


def shrunk(covariance_FF: Array, weight: float) -> Array:
    """Return a covariance mixed with the identity, which is scaled to the mean variance (Ledoit and Wolf 2004)."""
    width = len(covariance_FF)
    # Where all rows are the same, any positive number serves.
    scale = np.trace(covariance_FF) / width or 1.0
    whole_FF: Array = (1 - weight) * covariance_FF + weight * scale * np.eye(width)
    return whole_FF
