"""Thresholds are those of a plain search, shrunk where few rows decide them; temperatures and errors are those of scipy and
scikit-learn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from sklearn.metrics import f1_score, log_loss

from continual_petl.heads.calibration import calibration_errors, fitted_temperature
from continual_petl.heads.decision import Decision, tuned_thresholds
from continual_petl.heads.predictions import best


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


def logits_and_labels(seed: int, num_labels: int = 4, scale: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits whose softmax is too sharp by a factor, and labels that are drawn from the right one."""
    draw = torch.Generator().manual_seed(seed)
    right = torch.randn(300, num_labels, generator=draw)
    labels = torch.multinomial(right.softmax(-1), 1, generator=draw)[:, 0]
    return right * scale, labels


def smallest(loss: Callable[[float], torch.Tensor]) -> float:
    """Return the temperature with the smallest loss, found by scipy."""
    found = minimize_scalar(lambda log: float(loss(math.exp(log))), bounds=(-4, 4), options={"xatol": 1e-9})
    return math.exp(found.x)


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_temperature_has_the_smallest_cross_entropy(scale: float) -> None:
    outputs, labels = logits_and_labels(1, scale=scale)
    smoothing = 4 / 3 / (len(labels) + 2)  # torch spreads it over all four labels
    expected = smallest(lambda t: F.cross_entropy(outputs.double() / t, labels, label_smoothing=smoothing))
    found = fitted_temperature(outputs, labels, several=False)
    assert found == pytest.approx(expected, rel=1e-4)
    assert found == pytest.approx(scale, rel=0.2)


def test_temperature_of_several_labels_has_the_smallest_binary_cross_entropy() -> None:
    draw = torch.Generator().manual_seed(2)
    right = torch.randn(200, 3, generator=draw)
    labels = torch.bernoulli(right.sigmoid(), generator=draw)
    positives = labels.sum(0)
    targets = torch.where(labels.bool(), (positives + 1) / (positives + 2), 1 / (200 - positives + 2)).double()
    expected = smallest(lambda t: F.binary_cross_entropy_with_logits(right.double() * 2 / t, targets))
    assert fitted_temperature(right * 2, labels, several=True) == pytest.approx(expected, rel=1e-4)


def test_rows_without_a_mistake_make_no_answer_certain() -> None:
    outputs = torch.tensor([[0.5, 0.0], [0.0, 0.5]]).repeat(9, 1)
    temperature = fitted_temperature(outputs, outputs.argmax(-1), several=False)
    assert (outputs / temperature).softmax(-1).amax(-1).mean() == pytest.approx(19 / 20, abs=1e-4)  # Laplace's rule
    wrong = fitted_temperature(outputs, outputs.argmin(-1), several=False)
    assert wrong == 100  # the outputs say the opposite of what is right


def test_options_that_a_row_does_not_have_change_no_temperature() -> None:
    outputs, labels = logits_and_labels(3, num_labels=3)
    padded = torch.cat([outputs, torch.full((len(outputs), 2), -math.inf)], 1)
    assert fitted_temperature(padded, labels, several=False) == fitted_temperature(outputs, labels, several=False)
    decision = Decision(temperature=3.0)
    found, expected = (calibration_errors(decision, each, labels) for each in (padded, outputs))
    assert found == pytest.approx(expected)


def plain_error(confidences: np.ndarray, right: np.ndarray) -> float:
    """Return the expected calibration error: over 15 bins, the mean difference of confidence and share of right ones."""
    total = 0.0
    for number in range(15):
        inside = (confidences > number / 15) & (confidences <= (number + 1) / 15)
        if inside.any():
            total += inside.mean() * abs(confidences[inside].mean() - right[inside].mean())
    return total


def test_errors_of_probabilities_are_those_of_their_formulas() -> None:
    outputs, labels = logits_and_labels(4)
    found = calibration_errors(Decision(temperature=2.5), outputs, labels)
    for ending, temperature in (("", 2.5), ("_uncalibrated", 1.0)):
        shares = softmax(outputs.double().numpy() / temperature, axis=1)
        chosen, rows = shares.argmax(1), np.arange(len(labels))
        assert found[f"nll{ending}"] == pytest.approx(log_loss(labels, shares))
        assert found[f"brier{ending}"] == pytest.approx(np.square(shares - np.eye(4)[labels]).sum(1).mean())
        expected = plain_error(shares[rows, chosen], chosen == labels.numpy())
        assert found[f"ece{ending}"] == pytest.approx(expected, abs=1e-6)
    assert found["nll"] < found["nll_uncalibrated"]
    assert found["ece"] < found["ece_uncalibrated"]


def test_errors_of_several_labels_are_those_of_each_label() -> None:
    outputs = torch.tensor([[2.0, -1.0], [0.5, 3.0], [-2.0, 0.3]])
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    decision = Decision(temperature=2.0, thresholds=(0.5, 0.5))
    found, shares = calibration_errors(decision, outputs, labels), 1 / (1 + np.exp(-outputs.double().numpy() / 2))
    right = labels.numpy()
    assert found["nll"] == pytest.approx(-np.log(np.where(right == 1, shares, 1 - shares)).mean())
    assert found["brier"] == pytest.approx(np.square(shares - right).mean())
    assert found["ece"] == pytest.approx(plain_error(shares.ravel(), right.ravel()), abs=1e-6)


def test_logits_can_be_computed_from_probabilities_at_a_low_temperature() -> None:
    """Labels of rows without a task's name need them: in float32, these probabilities would be 0."""
    decision, logits = Decision(temperature=0.02), torch.tensor([0.0, -3.0, -10.0])
    shares = best(("a", "b", "c"), logits, 0.0, decision).probabilities
    assert shares is not None
    assert [0.02 * math.log(share) for share in shares.values()] == pytest.approx([0.0, -3.0, -10.0])


def test_nothing_is_measured_without_a_temperature() -> None:
    outputs, labels = logits_and_labels(5)
    assert calibration_errors(None, outputs, labels) == {}
    assert calibration_errors(Decision(thresholds=(0.5,)), outputs[:, :1], labels[:, None]) == {}
