"""Scores of predicted numbers, computed in float64.

torchmetrics computes them in float32: targets around a million with a deviation of one then have a wrong third decimal in
Pearson's correlation, and targets that float32 cannot tell apart count as tied in Spearman's.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.regression import PearsonCorrCoef, SpearmanCorrCoef
from torchmetrics.utilities import dim_zero_cat

Array = NDArray[np.float64]


class NumberMetrics(Metric):
    """Correlations and errors, and the errors of a baseline that always predicts the mean of the same rows' targets.

    * ``spearman`` and ``pearson``: rank correlation (ties get their mean rank) and linear correlation; NaN if undefined.
    * ``rmse`` and ``mae``: root mean squared and mean absolute error, in the units of the targets; lower is better.
    * ``rmse_of_mean`` and ``mae_of_mean``: those of the baseline, which are the standard deviation (of the population) and
      the mean absolute deviation of the targets.
    """

    rows: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        # Kept as the bits of float64 numbers, which every device can move and no conversion of precision changes.
        self.add_state("rows", [], dist_reduce_fx="cat")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add the predictions and the targets of a batch."""
        pairs = torch.stack([values.detach().cpu().double() for values in (preds, target)], dim=1)
        self.rows.append(pairs.view(torch.int64).to(self.device))

    def compute(self) -> dict[str, Tensor]:
        """Return the scores by name, float64 scalars."""
        predicted_N, target_N = dim_zero_cat(self.rows).cpu().view(torch.float64).numpy().T
        errors_N, baseline_N = predicted_N - target_N, _centred(target_N)
        values = {
            "spearman": correlation(mean_ranks(predicted_N), mean_ranks(target_N)),
            "pearson": correlation(predicted_N, target_N),
            "rmse": root_mean_square(errors_N),
            "mae": float(np.abs(errors_N).mean()),
            "rmse_of_mean": root_mean_square(baseline_N),
            "mae_of_mean": float(np.abs(baseline_N).mean()),
        }
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


def correlation(one_N: Array, other_N: Array) -> float:
    """Return Pearson's correlation; NaN if all values on one side are equal, or one is not finite."""
    one_N, other_N = _directions(one_N), _directions(other_N)
    return float(np.clip(one_N @ other_N, -1.0, 1.0))


def _directions(values_N: Array) -> Array:
    """Return the deviations from the mean, scaled to length one; NaN if there are none."""
    if not np.isfinite(values_N).all() or (values_N == values_N[0]).all():
        return np.full(len(values_N), np.nan)
    centred_N = _centred(values_N)
    centred_N /= np.abs(centred_N).max()  # so that no square is too large or too small
    return np.asarray(centred_N / np.sqrt(centred_N @ centred_N))


def _centred(values_N: Array) -> Array:
    """Return the deviations from the mean; the mean itself, of values around 1e15, would be rounded to eighths."""
    offsets_N = values_N - values_N[0]
    return np.asarray(offsets_N - offsets_N.mean())


def mean_ranks(values_N: Array) -> Array:
    """Return the ranks of values, from 1; equal values share the mean of their ranks. NaN if one is not finite.

    Example:
        >>> mean_ranks(np.array([3.0, 1.0, 3.0])).tolist()
        [2.5, 1.0, 2.5]
    """
    if not np.isfinite(values_N).all():
        return np.full(len(values_N), np.nan)
    _, place_N, counts = np.unique(values_N, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place_N])


def root_mean_square(values_N: Array) -> float:
    """Return the root of the mean square, without overflow."""
    largest = float(np.abs(values_N).max())
    if largest == 0 or not math.isfinite(largest):
        return largest
    return largest * math.sqrt(float(np.square(values_N / largest).mean()))


def single_precision_metrics() -> dict[str, Metric]:
    """Return the scores as they were computed before targets were standardised, to compare old certificates with."""
    with warnings.catch_warnings():
        # A rank correlation needs every row at once; one float per row takes little memory.
        warnings.filterwarnings("ignore", message="Metric `SpearmanCorrcoef` will save all")
        return {"spearman": SpearmanCorrCoef(), "pearson": PearsonCorrCoef()}
