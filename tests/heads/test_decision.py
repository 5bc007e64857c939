"""Thresholds are those of a plain search, shrunk where few rows decide them."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

from continual_petl.heads.decision import Decision, tuned_thresholds


def best_cuts(outputs_N: np.ndarray, labels_N: np.ndarray) -> tuple[float, set[float]]:
    """Return the best F1 of scikit-learn over one half and all cuts between two outputs, and the cuts that have it."""
    values = sorted(set(outputs_N.tolist()))
    between = ((low + high) / 2 for low, high in pairwise([2 * values[0] - values[1], *values]))
    scores = {cut: f1_score(labels_N, outputs_N > cut, zero_division=0) for cut in (0.0, *between)}
    best = max(scores.values())
    return best, {cut for cut, score in scores.items() if score > best - 1e-12}


def logit(share: float) -> float:
    return math.log(share / (1 - share))


@pytest.mark.parametrize("seed", range(8))
def test_a_label_alone_has_the_threshold_with_the_best_f1(seed: int) -> None:
    draw = np.random.default_rng(seed)
    outputs = draw.normal(-1, 1, 40).round(1)  # several rows have the same output
    labels = draw.random(40) < 1 / (1 + np.exp(-3 * (outputs + 1.5)))
    (share,) = tuned_thresholds(outputs[:, None], labels[:, None])  # the label's own is that of all labels together
    best, cuts = best_cuts(outputs, labels)
    assert f1_score(labels, outputs > logit(share)) == pytest.approx(best)
    assert logit(share) == pytest.approx(min(cuts, key=abs))


def test_a_label_is_shrunk_towards_all_labels_by_the_number_of_its_rows() -> None:
    draw = np.random.default_rng(3)
    outputs = draw.normal([-2, 0, 1], 1, (60, 3))
    labels = draw.random((60, 3)) < 1 / (1 + np.exp(-2 * (outputs - [-3, 1, -2])))
    together = min(best_cuts(outputs.ravel(), labels.ravel())[1], key=abs)
    found = tuned_thresholds(outputs, labels)
    for label, share in enumerate(found):
        own = min(best_cuts(outputs[:, label], labels[:, label])[1], key=abs)
        fewer = min(labels[:, label].sum(), (~labels[:, label]).sum())
        assert logit(share) == pytest.approx((fewer * own + 8 * together) / (fewer + 8))
    assert len({round(share, 6) for share in found}) == 3


def test_labels_that_say_nothing_have_the_threshold_of_all() -> None:
    outputs = np.array([[-1.0, -3.0, 2.0], [-2.0, -3.5, 3.0], [-4.0, -4.0, 2.5]])
    labels = np.array([[True, False, True], [True, False, True], [False, False, True]])
    together = -2.5  # between -2 and -3, above which all right labels are
    shares = tuned_thresholds(outputs, labels)
    assert [logit(share) for share in shares[1:]] == pytest.approx([together, together])
    assert tuned_thresholds(outputs, np.zeros_like(labels)) == (0.5, 0.5, 0.5)


def test_one_half_stays_if_none_is_better() -> None:
    outputs = np.array([[-2.0], [-0.5], [0.1], [4.0]])
    assert tuned_thresholds(outputs, outputs > 0) == (0.5,)
    assert tuned_thresholds(np.array([[3.0], [5.0]]), np.array([[True], [True]])) == (0.5,)


def test_thresholds_are_never_0_or_1() -> None:
    outputs = np.array([[-90.0], [-95.0], [-99.0]])
    assert tuned_thresholds(outputs, np.array([[True], [False], [False]])) == pytest.approx((1e-6,))


def test_a_label_applies_above_its_threshold() -> None:
    decision = Decision(thresholds=(0.25, 0.5))
    outputs = torch.tensor([[-1.09, -0.1], [-1.11, 0.1], [logit(0.25), 0.0]])
    assert (decision.above(outputs) > 0).tolist() == (outputs.sigmoid() > torch.tensor([0.25, 0.5])).tolist()
