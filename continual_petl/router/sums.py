"""A task's routing statistics: the mean state of each label's rows in the frozen backbone, and the covariance around it.

A task without labels, or with too few rows of any one label, stores the mean of all its rows instead.

The statistics of a task depend on its own rows alone and never change. The covariance is stored in fixed point, as integers
that count multiples of 2^-30. The router weights covariances by the number of rows and adds them as integers, which is exact
in any order: the total is the same, bit for bit, in whatever order the tasks were learned, and a forgotten task leaves
nothing behind.

A covariance is symmetric; only its upper triangle is stored.

Shape suffixes: N rows, K layers read, D width of a layer, F = K * D, U = F * (F + 1) / 2, C means, Q quantiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ONE = 2**30
"""The number 1 in fixed point; states have length one in each layer, so no covariance exceeds it."""
QUANTILES = np.linspace(0.0, 1.0, 201)
"""Quantile levels at which the distances of validation rows are stored; the threshold for unknown rows is read from them."""
OWN_SHRINKAGE = 0.2
"""Weight of the scaled identity in a task's own covariance."""
MIN_ROWS_PER_LABEL = 10
"""Minimum number of rows per label: the mean of fewer would reveal too much about single rows and represent the label
poorly."""
_DTYPES = {
    "layers_K": np.int64,
    "counts_C": np.int64,
    "means_CF": np.float64,
    "covariance_U": np.int32,
    "distances_Q": np.float64,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskSums:
    """The routing statistics of one task."""

    layers: tuple[int, ...]
    """1-based indices of the layers that were read."""
    counts_C: NDArray[np.int64]
    """Number of rows behind each mean."""
    means_CF: Array
    """One mean for each label, or a single mean of all rows."""
    covariance_U: NDArray[np.int32]
    """Covariance of the rows around their means."""
    distances_Q: Array
    """Quantiles of the distances of validation rows from this task; see `distances`."""

    def __post_init__(self) -> None:
        num_means, width = self.means_CF.shape
        if not self.layers or width % len(self.layers) or not num_means or (self.counts_C < 1).any():
            raise ValueError(f"{num_means} means of {width} values, {len(self.layers)} layers, counts {self.counts_C}")
        if self.covariance_U.shape != (width * (width + 1) // 2,) or self.distances_Q.shape != QUANTILES.shape:
            raise ValueError(f"wrong shapes: covariance {self.covariance_U.shape}, quantiles {self.distances_Q.shape}")
        if self.counts_C.shape != (num_means,):
            raise ValueError(f"got {num_means} means, but row counts for {len(self.counts_C)} means")
        if not (np.isfinite(self.means_CF).all() and np.isfinite(self.distances_Q).all()):
            raise ValueError("a value is not finite")

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.counts_C.sum())

    def precision(self) -> Array:
        """Return the inverse of the task's own covariance, ``(F, F)``."""
        covariance_FF = shrunk(square(self.covariance_U.astype(np.int64)) / ONE, OWN_SHRINKAGE)
        return np.asarray(np.linalg.inv(covariance_FF), dtype=np.float64)

    def distances(self, states_NF: Array, precision_FF: Array) -> Array:
        """Return the squared Mahalanobis distances of rows from the nearest mean, ``(N,)``."""
        # (x - m)' P (x - m), with one product per row instead of one per row and mean.
        weight_CF = self.means_CF @ precision_FF
        own_C = (weight_CF * self.means_CF).sum(1)
        found_NC = ((states_NF @ precision_FF) * states_NF).sum(1)[:, None] - 2 * states_NF @ weight_CF.T + own_C
        nearest_N: Array = np.maximum(found_NC.min(1), 0.0)
        return nearest_N

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the statistics as named arrays, as they are stored."""
        values = {
            "layers_K": self.layers,
            "counts_C": self.counts_C,
            "means_CF": self.means_CF,
            "covariance_U": self.covariance_U,
            "distances_Q": self.distances_Q,
        }
        return {name: np.asarray(value, dtype=_DTYPES[name]) for name, value in values.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> TaskSums:
        """Restore the statistics from the result of `to_arrays`.

        Raises:
            ValueError: if the names, dtypes or shapes are not those that `to_arrays` returns.
        """
        if {name: array.dtype for name, array in arrays.items()} != {
            name: np.dtype(own) for name, own in _DTYPES.items()
        }:
            raise ValueError(f"expected the arrays {', '.join(_DTYPES)} with their dtypes, got {', '.join(arrays)}")
        if arrays["layers_K"].ndim != 1 or arrays["means_CF"].ndim != 2 or arrays["counts_C"].ndim != 1:
            raise ValueError("layers_K, means_CF or counts_C has the wrong number of dimensions")
        return cls(
            layers=tuple(arrays["layers_K"].tolist()),
            counts_C=arrays["counts_C"].astype(np.int64),
            means_CF=arrays["means_CF"].astype(np.float64),
            covariance_U=arrays["covariance_U"].astype(np.int32),
            distances_Q=arrays["distances_Q"].astype(np.float64),
        )


def sums_of(
    states_NF: Array, layers: tuple[int, ...], held_out_NF: Array, labels_N: NDArray[np.int64] | None = None
) -> TaskSums:
    """Return the routing statistics of a task.

    Args:
        states_NF: states of the task's training rows; see `row_states`.
        layers: 1-based indices of the layers that were read.
        held_out_NF: states of the task's validation rows; only quantiles of their distances are kept.
        labels_N: the label of each training row; None for a task that does not have one label per row.
    """
    which_N = _means(labels_N, len(states_NF))
    counts_C = np.bincount(which_N)
    means_CF = np.stack([states_NF[which_N == mean].mean(0) for mean in range(len(counts_C))])
    centred_NF = states_NF - means_CF[which_N]
    covariance_FF = centred_NF.T @ centred_NF / len(states_NF)
    upper_U = covariance_FF[np.triu_indices(states_NF.shape[1])]
    sums = TaskSums(
        layers=layers,
        counts_C=counts_C,
        means_CF=means_CF,
        covariance_U=np.rint(upper_U * ONE).astype(np.int32),
        distances_Q=np.zeros(QUANTILES.shape),
    )
    return replace(sums, distances_Q=np.quantile(sums.distances(held_out_NF, sums.precision()), QUANTILES))


def _means(labels_N: NDArray[np.int64] | None, num_rows: int) -> NDArray[np.intp]:
    """Return, for each row, the index of the mean that it belongs to."""
    if labels_N is not None:
        _, which_N = np.unique(labels_N, return_inverse=True)
        if np.bincount(which_N).min() >= MIN_ROWS_PER_LABEL:
            return which_N
    return np.zeros(num_rows, dtype=np.intp)


def square(upper_U: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the symmetric matrix with the given upper triangle."""
    width = int(np.sqrt(2 * len(upper_U)))
    whole_FF = np.zeros((width, width), dtype=upper_U.dtype)
    whole_FF[np.triu_indices(width)] = upper_U
    return whole_FF + np.triu(whole_FF, 1).T


def shrunk(covariance_FF: Array, weight: float) -> Array:
    """Return a covariance mixed with the identity scaled to the mean variance (Ledoit and Wolf 2004)."""
    width = len(covariance_FF)
    # If all rows are the same, any positive number will do.
    scale = np.trace(covariance_FF) / width or 1.0
    whole_FF: Array = (1 - weight) * covariance_FF + weight * scale * np.eye(width)
    return whole_FF
