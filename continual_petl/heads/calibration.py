"""Probabilities that fit how often answers are right: one temperature, found on validation rows (Guo et al. 2017).

The logits are divided by the number T before the softmax, or the sigmoids, with the smallest negative log-likelihood on the
validation rows (https://arxiv.org/abs/1706.04599, section 4.2). It changes no order of the logits.

Unlike there, the targets are those of Platt (1999, "Probabilistic outputs for support vector machines", section 2.2): for n
rows (n + 1) / (n + 2) instead of 1, and the rest for all other labels. Otherwise validation rows without a mistake, which are
common if there are few, would make every answer certain.

Shape legend: N rows, C labels or options.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from continual_petl.heads.decision import COLDEST, Decision

if TYPE_CHECKING:
    from torch import Tensor

NUM_BINS = 15
"""Bins of the expected calibration error, of equal width, as in Guo et al. 2017."""
_STEPS = 100


def fitted_temperature(outputs_NC: Tensor, answers: Tensor, *, several: bool) -> float:
    """Return the temperature with the smallest negative log-likelihood, between 1/100 and 100, to six digits.

    Args:
        outputs_NC: logits; -inf where a row has fewer options.
        answers: the position of the right one of each row ``(N,)`` or, if several may apply, zeros and ones ``(N, C)``.
        several: whether several labels may apply to a row.
    """
    import torch

    outputs_NC = outputs_NC.double()
    there_NC = outputs_NC.isfinite()
    if several:
        counts_C = answers.double().sum(0)
        no_C, yes_C = 1 / (len(answers) - counts_C + 2), (counts_C + 1) / (counts_C + 2)
        targets_NC = torch.where(answers.bool(), yes_C, no_C)
    else:
        rest_N1 = 1 / (len(answers) + 2) / (there_NC.sum(-1, keepdim=True) - 1).clamp(min=1)
        right = (len(answers) + 1) / (len(answers) + 2)
        targets_NC = rest_N1.expand_as(outputs_NC).scatter(1, answers.long()[:, None], right)
    finite_NC = outputs_NC.masked_fill(~there_NC, 0.0)

    def slope(temperature: float) -> float:
        """Return the derivative of the negative log-likelihood by 1 / T, which grows with 1 / T."""
        scaled = outputs_NC / temperature
        shares_NC = scaled.sigmoid() if several else scaled.softmax(-1)
        return float(((shares_NC - targets_NC) * finite_NC).sum())

    low, high = math.log(COLDEST), -math.log(COLDEST)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(math.exp(middle)) > 0 else (low, middle)
    return float(f"{math.exp(high):.6g}")


def calibration_errors(decision: Decision | None, outputs_NC: Tensor, answers: Tensor | None) -> dict[str, float]:
    """Return how well probabilities fit the right answers, with and without the temperature; empty without one.

    The mean negative log-likelihood (nll); the mean squared difference from 0 or 1, summed over the labels of a row if one of
    them is right (Brier 1950); the expected calibration error (ece) of the answered label or, if several may apply, of all
    labels (Naeini et al. 2015).

    Args:
        decision: how answers are read from the outputs.
        outputs_NC: as in `fitted_temperature`.
        answers: as in `fitted_temperature`; None for rows whose answers are texts.
    """
    import torch
    import torch.nn.functional as F
    from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

    if decision is None or decision.temperature is None or answers is None:
        return {}
    found, outputs_NC = dict[str, float](), outputs_NC.double()
    for ending, own in {"": decision, "_uncalibrated": decision.model_copy(update={"temperature": None})}.items():
        shares_NC, several = own.shares(outputs_NC), own.thresholds is not None
        if several:
            targets_NC = answers.double()
            nll = F.binary_cross_entropy_with_logits(own.scaled(outputs_NC), targets_NC)
            brier = (shares_NC - targets_NC).square().mean()
            ece = binary_calibration_error(shares_NC.flatten(), targets_NC.flatten().long(), NUM_BINS)
        else:
            right_N = answers.long()
            nll = F.cross_entropy(own.scaled(outputs_NC), right_N)
            targets_NC = torch.zeros_like(shares_NC).scatter(1, right_N[:, None], 1.0)
            brier = (shares_NC - targets_NC).square().sum(-1).mean()
            ece = multiclass_calibration_error(shares_NC, right_N, shares_NC.shape[1], NUM_BINS)
        found |= {f"{name}{ending}": float(value) for name, value in {"nll": nll, "brier": brier, "ece": ece}.items()}
    return found
