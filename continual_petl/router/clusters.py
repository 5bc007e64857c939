"""Rows as normal distributions around several means, with one covariance for all of them, in two forms.

`Exact` keeps every value of the covariance. `Compact` keeps a factor U of few columns, rounded to 4 bits, and what the
variances exceed U U': with 4 bits, twice as many columns fit as with 8, and they keep more of the covariance.

In both, every value of the covariance is a multiple of 2^-30, so that covariances are added as integers, which is exact in
any order: a total is the same, bit for bit, in whatever order tasks were learned, and a forgotten task leaves nothing behind.

Shape suffixes: N rows, F features per row, U = F * (F + 1) / 2, C means, R columns of the factor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Arrays = Mapping[str, NDArray[np.generic]]
Distances = Callable[[Array, Array], Array]
"""Returns squared Mahalanobis distances of rows (N, F) from means (C, F), as (N, C)."""

ONE = 2**30
"""The number 1 in fixed point; states have length one in each layer, so no covariance of theirs exceeds it."""
LARGEST_MEAN = 1000.0
"""Limit of the values of stored means, far above those of any states: distances from means within it never overflow."""
LARGEST, LEAST_POWER = 7, -15
"""Largest number in a factor, and the smallest power of two that multiplies a column: products are multiples of 2^-30."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Exact:
    """A covariance with all of its values; it is symmetric, so only its upper triangle is kept."""

    covariance_U: NDArray[np.int32]
    """Counts of 2^-30."""

    @property
    def width(self) -> int:
        """Number of features."""
        return int(np.sqrt(2 * len(self.covariance_U)))

    @property
    def upper_U(self) -> NDArray[np.int64]:
        """The upper triangle, in counts of 2^-30."""
        return self.covariance_U.astype(np.int64)

    def distances(self, weight: float) -> Distances:
        """Return the function that measures distances under this covariance, shrunk with ``weight``; see `shrunk`."""
        precision_FF = np.asarray(np.linalg.inv(shrunk(square(self.upper_U) / ONE, weight)), dtype=np.float64)

        def measured(rows_NF: Array, means_CF: Array) -> Array:
            # (x - m)' P (x - m), with one product per row instead of one per row and mean.
            weight_CF = means_CF @ precision_FF
            own_C = (weight_CF * means_CF).sum(1)
            found_NC: Array = ((rows_NF @ precision_FF) * rows_NF).sum(1)[:, None] - 2 * rows_NF @ weight_CF.T + own_C
            return found_NC

        return measured

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the values as named arrays, as they are stored."""
        return {"covariance_U": self.covariance_U}


@dataclass(frozen=True, kw_only=True, eq=False)
class Compact:
    """A covariance U U' + D, with a diagonal D."""

    factor_FR: NDArray[np.int8]
    """U, each column divided by its power of two: whole numbers from -7 to 7. R is even."""
    powers_R: NDArray[np.int8]
    """The exponents of the powers of two."""
    diagonal_F: NDArray[np.int32]
    """D, in counts of 2^-30."""

    @classmethod
    def of(cls, centred_NF: Array, num_columns: int) -> Compact:
        """Return the covariance of rows around their means.

        Args:
            centred_NF: the rows minus their means.
            num_columns: columns of the factor, an even number; they belong to the largest variances.
        """
        num_rows, width = centred_NF.shape
        factor_FR = np.zeros((width, num_columns))
        if num_rows < width:
            values, vectors = np.linalg.eigh(centred_NF @ centred_NF.T)
            found = centred_NF.T @ vectors[:, ::-1][:, :num_columns] / np.sqrt(num_rows)
        else:
            values, vectors = np.linalg.eigh(centred_NF.T @ centred_NF / num_rows)
            found = vectors[:, ::-1][:, :num_columns] * np.sqrt(np.maximum(values[::-1][:num_columns], 0))
        factor_FR[:, : found.shape[1]] = found
        # Values are nearly normal: 2.5 deviations as the largest number loses little, and leaves finer steps to the others.
        largest_R = np.minimum(np.abs(factor_FR).max(0), 2.5 * factor_FR.std(0)) if width else np.zeros(num_columns)
        powers_R = np.clip(np.rint(np.log2(np.maximum(largest_R, 1e-30) / LARGEST)), LEAST_POWER, 0).astype(np.int8)
        whole_FR = np.clip(np.rint(factor_FR / 2.0**powers_R), -LARGEST, LARGEST).astype(np.int8)
        left_F = (centred_NF**2).mean(0) - ((whole_FR * 2.0**powers_R) ** 2).sum(1)
        diagonal_F = np.clip(np.rint(left_F * ONE), 1, 2**31 - 1).astype(np.int32)
        return cls(factor_FR=whole_FR, powers_R=powers_R, diagonal_F=diagonal_F)

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.diagonal_F)

    @property
    def _scaled_FR(self) -> Array:
        scaled_FR: Array = self.factor_FR * 2.0**self.powers_R
        return scaled_FR

    @property
    def upper_U(self) -> NDArray[np.int64]:
        """The upper triangle, in counts of 2^-30, exactly: all sums of products are whole counts below 2^53."""
        factor_FR = self._scaled_FR
        whole_FF = np.rint(factor_FR @ factor_FR.T * ONE).astype(np.int64)
        whole_FF[np.diag_indices(self.width)] += self.diagonal_F
        return whole_FF[np.triu_indices(self.width)]

    def distances(self, weight: float) -> Distances:
        """Return the function that measures distances under this covariance, shrunk with ``weight``; see `shrunk`."""
        diagonal_F, factor_FR = self.diagonal_F / ONE, self._scaled_FR
        scale = float(diagonal_F.sum() + (factor_FR**2).sum()) / self.width or 1.0
        own_F = (1 - weight) * diagonal_F + weight * scale
        # Woodbury's identity: with A diagonal, (A + V V')^-1 = A^-1 - A^-1 V (I + V' A^-1 V)^-1 V' A^-1.
        apart_FR = np.sqrt(1 - weight) * factor_FR / own_F[:, None]
        core_RR = np.eye(factor_FR.shape[1]) + np.sqrt(1 - weight) * factor_FR.T @ apart_FR
        read_FR = np.linalg.solve(np.linalg.cholesky(core_RR), apart_FR.T).T

        def measured(rows_NF: Array, means_CF: Array) -> Array:
            rows_NR, means_CR = rows_NF @ read_FR, means_CF @ read_FR
            own_N = (rows_NF**2 / own_F).sum(1) - (rows_NR**2).sum(1)
            own_C = (means_CF**2 / own_F).sum(1) - (means_CR**2).sum(1)
            found_NC: Array = own_N[:, None] - 2 * (rows_NF / own_F @ means_CF.T - rows_NR @ means_CR.T) + own_C
            return found_NC

        return measured

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the values as named arrays, as they are stored: two numbers of the factor share a byte."""
        positive_FR = (self.factor_FR + 8).astype(np.uint8)
        packed = positive_FR[:, 0::2] << 4 | positive_FR[:, 1::2]
        return {"factor_FR": packed, "powers_R": self.powers_R, "diagonal_F": self.diagonal_F}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Compact:
        """Restore the covariance from the result of `to_arrays`.

        Raises:
            ValueError: if shapes do not match, or a number is out of range.
        """
        packed = arrays["factor_FR"].astype(np.uint8)
        powers_R, diagonal_F = arrays["powers_R"].astype(np.int8), arrays["diagonal_F"].astype(np.int32)
        if packed.ndim != 2 or powers_R.shape != (2 * packed.shape[1],) or diagonal_F.shape != (len(packed),):
            raise ValueError(
                f"wrong shapes: factor {packed.shape}, powers {powers_R.shape}, diagonal {diagonal_F.shape}"
            )
        factor_FR = np.empty((len(packed), len(powers_R)), np.int8)
        factor_FR[:, 0::2], factor_FR[:, 1::2] = (packed >> 4).astype(np.int8) - 8, (packed & 15).astype(np.int8) - 8
        if (np.abs(factor_FR) > LARGEST).any() or (powers_R < LEAST_POWER).any() or (powers_R > 0).any():
            raise ValueError("a number of the factor is out of range")
        if (diagonal_F < 1).any():
            raise ValueError("a value of the diagonal is not positive")
        return cls(factor_FR=factor_FR, powers_R=powers_R, diagonal_F=diagonal_F)


def exact_covariance(centred_NF: Array) -> Exact:
    """Return the covariance of rows around their means; no value may exceed one."""
    covariance_FF = centred_NF.T @ centred_NF / len(centred_NF)
    return Exact(covariance_U=np.rint(covariance_FF[np.triu_indices(len(covariance_FF))] * ONE).astype(np.int32))


@dataclass(frozen=True, kw_only=True, eq=False)
class Means:
    """Means in 8 bits: each is the centre plus whole numbers from -127 to 127 times a power of two of its own."""

    centre_F: NDArray[np.float16]
    whole_CF: NDArray[np.int8]
    powers_C: NDArray[np.int8]

    @classmethod
    def of(cls, means_CF: Array) -> Means:
        """Round means; the centre of a single mean is the mean itself, so that the numbers only have to add the rest."""
        centre_F = means_CF.mean(0).astype(np.float16)
        apart_CF = means_CF - centre_F
        powers_C = np.clip(np.ceil(np.log2(np.maximum(np.abs(apart_CF).max(1), 1e-30) / 127)), -60, 60)
        whole_CF = np.rint(apart_CF / 2.0 ** powers_C[:, None])
        return cls(centre_F=centre_F, whole_CF=whole_CF.astype(np.int8), powers_C=powers_C.astype(np.int8))

    @property
    def values_CF(self) -> Array:
        """The means, in float64."""
        values_CF: Array = self.centre_F.astype(np.float64) + self.whole_CF * 2.0 ** self.powers_C[:, None]
        return values_CF

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the values as named arrays, as they are stored."""
        return {"centre_F": self.centre_F, "means_CF": self.whole_CF, "powers_C": self.powers_C}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Means:
        """Restore the means from the result of `to_arrays`.

        Raises:
            ValueError: if shapes do not match, or a value is not finite.
        """
        centre_F, whole_CF = arrays["centre_F"].astype(np.float16), arrays["means_CF"].astype(np.int8)
        powers_C = arrays["powers_C"].astype(np.int8)
        if whole_CF.ndim != 2 or centre_F.shape != whole_CF.shape[1:] or powers_C.shape != whole_CF.shape[:1]:
            raise ValueError(f"wrong shapes: centre {centre_F.shape}, means {whole_CF.shape}, powers {powers_C.shape}")
        if not np.isfinite(centre_F).all() or (np.abs(powers_C) > 60).any():
            raise ValueError("a value of the means is not finite, or a power is out of range")
        return cls(centre_F=centre_F, whole_CF=whole_CF, powers_C=powers_C)


def in_range(means_CF: Array) -> bool:
    """Return whether all values of means are numbers within `LARGEST_MEAN`."""
    return bool((np.abs(means_CF) <= LARGEST_MEAN).all())  # no comparison holds for what is not a number


def values_of(means: Means | Array) -> Array:
    """Return means that may be stored in 8 bits, in float64."""
    return means.values_CF if isinstance(means, Means) else means


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
