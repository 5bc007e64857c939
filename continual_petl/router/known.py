"""How likely a row of a task lies as far away as a given row: the share of the task's rows that do, from its validation rows.

`Quantiles` reads the share from the distances of validation rows themselves, so that it cannot tell apart shares below one
in their number. `Moments` reads it from a gamma distribution with the mean, the deviation and the skewness of the validation
rows, which also fits the tail beyond the farthest of them.

Shape suffixes: N rows, Q quantiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float64]

QUANTILES = np.linspace(0.0, 1.0, 201)
"""Quantile levels at which the distances of validation rows are stored."""
LEAST_SKEWNESS, MOST_SKEWNESS = 0.2, 2.0
"""Limits of the skewness: distances have a longer tail on the far side; few rows do not say how long."""
USUAL_DEVIATION, NUM_USUAL = 0.1, 5
"""The deviation of a distance as a share of its mean, if nothing is known, and the number of rows that it counts as: a few
validation rows that happen to be alike do not make all other rows foreign."""
LEAST_DEVIATION = 0.1
"""The least deviation of a distance. Those of rows that differ are larger; if all rows are the same, their distances only
differ by rounding, which says nothing about other rows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Quantiles:
    """Quantiles of the validation rows' squared distances."""

    distances_Q: Array

    def __post_init__(self) -> None:
        if self.distances_Q.shape != QUANTILES.shape or not np.isfinite(self.distances_Q).all():
            raise ValueError(f"wrong shapes: quantiles {self.distances_Q.shape}, or a value is not finite")

    def share(self, distances_N: Array) -> Array:
        """Return the share of validation rows that are at least as far away."""
        # From the farthest row to the nearest: of equal distances, all are at least as far away.
        last = len(QUANTILES) - 1
        found_N: Array = np.interp(-distances_N, -self.distances_Q[::-1], np.arange(last + 1) / last)
        return found_N


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Mean, deviation and skewness of the validation rows' distances."""

    mean: float
    deviation: float
    skewness: float

    @classmethod
    def of(cls, values_N: Array, *, usual: float | None = None) -> Moments:
        """Return the moments of distances.

        Args:
            values_N: distances of rows, at least one.
            usual: the deviation to expect; None: `USUAL_DEVIATION` of the mean.
        """
        mean, num_rows = float(values_N.mean()), len(values_N)
        usual = USUAL_DEVIATION * abs(mean) if usual is None else usual
        variance = (num_rows * float(values_N.var()) + NUM_USUAL * usual**2) / (num_rows + NUM_USUAL)
        deviation = max(float(np.sqrt(variance)), LEAST_DEVIATION)
        skewness = float(((values_N - mean) ** 3).mean()) / deviation**3
        return cls(mean=mean, deviation=deviation, skewness=min(MOST_SKEWNESS, max(LEAST_SKEWNESS, skewness)))

    def standardised(self, values_N: Array) -> Array:
        """Return by how many deviations values exceed the mean."""
        return (values_N - self.mean) / self.deviation

    def share(self, values_N: Array) -> Array:
        """Return the share of rows that are at least as far away, under a gamma distribution with these moments."""
        shape = 4 / self.skewness**2
        beyond_N = np.maximum(self.standardised(values_N) * np.sqrt(shape) + shape, 0.0)
        own_N = torch.special.gammaincc(
            torch.full((len(values_N),), shape, dtype=torch.float64), torch.from_numpy(beyond_N)
        )
        found_N: Array = own_N.numpy()
        return found_N

    def to_array(self) -> Array:
        """Return the three numbers."""
        return np.array([self.mean, self.deviation, self.skewness])

    @classmethod
    def from_array(cls, values: NDArray[np.generic]) -> Moments:
        """Restore the moments from the result of `to_array`.

        Raises:
            ValueError: if they are not the moments of any distances.
        """
        numbers = np.asarray(values, dtype=np.float64)
        if numbers.shape != (3,) or not np.isfinite(numbers).all() or numbers[1] <= 0:
            raise ValueError(f"moments: got {numbers}")
        if not LEAST_SKEWNESS <= numbers[2] <= MOST_SKEWNESS:
            raise ValueError(f"skewness: got {numbers[2]}")
        return cls(mean=float(numbers[0]), deviation=float(numbers[1]), skewness=float(numbers[2]))
