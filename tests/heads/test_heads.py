"""Heads, losses, answers in words, and scores that mean what their names say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from continual_petl.heads.head import Head, answers
from continual_petl.heads.kinds import METRICS
from continual_petl.heads.scores import make_scores


def _head(kind: Any, num_labels: int) -> Head:
    head = Head(kind, 8, num_labels, 0.1).eval()
    head.initialise(lambda name: torch.Generator().manual_seed(0))
    return head


def test_classification_is_cross_entropy_and_argmax() -> None:
    head = _head("classification", 3)
    outputs = head(torch.randn(5, 8))
    targets = torch.tensor([0, 1, 2, 1, 0])
    torch.testing.assert_close(head.loss(outputs, targets), F.cross_entropy(outputs, targets))
    assert torch.equal(head.predictions(outputs), outputs.argmax(-1))
    answer = answers("classification", ("a", "b", "c"), outputs)[0]
    assert answer.value == "abc"[int(outputs[0].argmax())]
    assert answer.probabilities is not None
    assert sum(answer.probabilities) == pytest.approx(1)


def test_regression_is_squared_error_and_the_number_itself() -> None:
    head = _head("regression", 1)
    outputs = head(torch.randn(4, 8))
    targets = torch.randn(4)
    torch.testing.assert_close(head.loss(outputs, targets), ((outputs[:, 0] - targets) ** 2).mean())
    assert answers("regression", None, outputs)[1].value == float(outputs[1, 0].detach())


def test_accuracy_is_the_share_of_rows_not_of_classes() -> None:
    # One class of three rows, one of one: micro 3/4, macro 1/2.
    scores = make_scores("classification", 2)
    scores.update(torch.tensor([0, 0, 0, 0]), torch.tensor([0, 0, 0, 1]))
    values = {name: float(value) for name, value in scores.compute().items()}
    assert values["accuracy"] == 0.75
    assert values["macro_f1"] == pytest.approx((6 / 7 + 0) / 2)
    assert values["matthews"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_matthews_of_two_classes_is_pearsons_correlation(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    predictions, targets = (torch.randint(2, (30,), generator=generator) for _ in range(2))
    scores = make_scores("classification", 2)
    scores.update(predictions, targets)
    expected = np.corrcoef(predictions.numpy(), targets.numpy())[0, 1]
    assert float(scores.compute()["matthews"]) == pytest.approx(expected, abs=1e-6)


def test_matthews_of_three_classes() -> None:
    # By hand, Gorodkin 2004: 4 right of 6, counts (2, 2, 2) true and (3, 2, 1) predicted.
    scores = make_scores("classification", 3)
    scores.update(torch.tensor([0, 0, 1, 1, 2, 0]), torch.tensor([0, 1, 1, 2, 2, 0]))
    expected = (4 * 6 - (2 * 3 + 2 * 2 + 2 * 1)) / ((36 - 14) * (36 - 12)) ** 0.5
    assert float(scores.compute()["matthews"]) == pytest.approx(expected)


@pytest.mark.parametrize("kind", METRICS)
def test_every_score_that_a_stream_can_name_exists(kind: Any) -> None:
    assert set(make_scores(kind, 3)) == set(METRICS[kind])


def test_batches_of_any_size_give_the_same_score() -> None:
    predictions, targets = torch.randint(3, (37,)), torch.randint(3, (37,))
    whole, parts = make_scores("classification", 3), make_scores("classification", 3)
    whole.update(predictions, targets)
    for start in range(0, 37, 8):
        parts.update(predictions[start : start + 8], targets[start : start + 8])
    assert whole.compute() == parts.compute()
