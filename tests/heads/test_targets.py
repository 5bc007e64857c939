"""Targets are standardised by their exactly computed mean and deviation, and restored in float64."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sklearn.preprocessing import StandardScaler

from continual_petl.errors import InputError
from continual_petl.heads.linear import NumberHead
from continual_petl.heads.targets import AS_GIVEN, Targets
from tests.heads.fresh import fresh_head

NUMBERS = st.lists(st.floats(-1e12, 1e12).map(lambda value: round(value, 6)), min_size=1, max_size=20)


@settings(max_examples=50)
@given(NUMBERS)
def test_targets_are_standardised_as_by_scikit_learn(values: list[float]) -> None:
    found = Targets.of("one", values)
    scaler = StandardScaler().fit(np.array(values)[:, None])
    spread = np.ptp(values)
    if spread > 1e-3 * np.abs(values).max():  # otherwise, scikit-learn's own rounding shows
        ours = found.standardised(torch.tensor(values, dtype=torch.float64))
        np.testing.assert_allclose(ours, scaler.transform(np.array(values)[:, None])[:, 0], rtol=1e-5, atol=1e-6)
    assert found == Targets.of("one", random.Random(1).sample(values, len(values)))


def test_outputs_are_restored_in_float64() -> None:
    outputs = torch.tensor([0.5, -1.25])
    found = Targets(mean=1.6e9, deviation=0.1).restored(outputs)
    assert found.dtype == torch.float64
    assert found.tolist() == [1.6e9 + 0.05, 1.6e9 - 0.125]
    assert AS_GIVEN.restored(outputs).tolist() == outputs.tolist()


def test_head_learns_and_predicts_in_deviations() -> None:
    head = fresh_head("regression", 3, 1, targets=Targets(mean=120.0, deviation=20.0))
    outputs, labels = torch.tensor([[1.0], [0.5]]), torch.tensor([120.0, 150.0], dtype=torch.float64)
    assert head.loss(outputs, labels).item() == (1.0**2 + (0.5 - 1.5) ** 2) / 2
    assert head.loss(outputs, labels).dtype == torch.float32
    assert head.predictions(outputs).tolist() == [140.0, 130.0]


def test_a_head_without_targets_is_as_it_was() -> None:
    head = fresh_head("regression", 3, 1)
    outputs, labels = torch.tensor([[1.0], [0.5]]), torch.tensor([2.0, 3.0])
    assert head.loss(outputs, labels).item() == (1 + 2.5**2) / 2
    assert head.predictions(outputs).dtype == torch.float32


def test_a_head_is_rescaled() -> None:
    head = fresh_head("regression", 3, 1)
    assert isinstance(head, NumberHead)
    torch.nn.init.normal_(head.output.weight)
    torch.nn.init.normal_(head.output.bias)
    features = torch.randn(4, 3)
    before = head(features)
    head.rescale(20.0, 120.0)
    torch.testing.assert_close(head(features), before * 20 + 120)


@pytest.mark.parametrize(
    "given",
    [{"mean": float("nan"), "deviation": 1}, {"mean": 0, "deviation": 0}, {"mean": 0, "deviation": -1},
     {"mean": 1e301, "deviation": 1}, {"mean": 0, "deviation": float("inf")}, {"mean": 0, "deviation": 1e-310}],
)  # fmt: skip
def test_a_forged_certificate_holds_no_unusable_numbers(given: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Targets.model_validate(given)


def test_a_deviation_that_vanishes_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"task 'one': its training targets deviate .* write the targets in smaller units"
    ):
        Targets.of("one", [0.0, 1e-310])
