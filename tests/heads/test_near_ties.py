"""An answer says whether rounding could decide it: the two best outputs, or an output and its threshold, are close."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from continual_petl.heads.predictions import ROUNDING, choices, tags
from tests.heads.words import predictions

PRECISIONS: tuple[Literal["fp32", "bf16"], ...] = ("fp32", "bf16")
LABELS = ("a", "b", "c")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_two_labels_within_rounding_are_a_near_tie(precision: Literal["fp32", "bf16"]) -> None:
    gaps = torch.tensor([0.0, 0.5, 0.9, 1.1, 2.0]) * ROUNDING[precision]
    outputs_BC = torch.stack([torch.zeros(5), gaps, torch.full((5,), -3.0)], -1)
    expected = [True, True, True, False, False]
    for kind in ("classification", "image-classification"):
        assert [
            prediction.near_tie for prediction in predictions(kind, LABELS, outputs_BC, precision=precision)
        ] == expected
    words = [outputs_BC[:2], outputs_BC[3:], outputs_BC]
    assert [tag.near_tie for tag in tags(LABELS, words, precision=precision)] == [True, False, True]
    assert [tag.value for tag in tags(LABELS, words[1:2])] == [["b", "b"]]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_multilabel_compares_every_label_with_its_threshold(precision: Literal["fp32", "bf16"]) -> None:
    near, far = 0.9 * ROUNDING[precision], 1.1 * ROUNDING[precision]
    outputs_BC = torch.tensor([[far, -far, 3.0], [far, -near, 3.0], [near, -far, 3.0]])
    found = predictions("multilabel", LABELS, outputs_BC, precision=precision)
    assert [each.near_tie for each in found] == [False, True, True]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_options_are_sums_over_tokens_with_more_rounding(precision: Literal["fp32", "bf16"]) -> None:
    rounding = 10 * ROUNDING[precision]
    outputs_BK = torch.tensor([[0.0, 0.9 * rounding, 0.9 * rounding], [0.0, 1.1 * rounding, 1.1 * rounding]])
    # The third value is not an option of these rows.
    found = choices([["x", "y"], ["x", "y"]], outputs_BK, precision=precision)
    assert [each.near_tie for each in found] == [True, False]
    for kind in ("seq2seq", "causal-lm"):  # the same options for all rows of a task
        assert [e.near_tie for e in predictions(kind, ("x", "y"), outputs_BK[:, :2], precision=precision)] == [
            True,
            False,
        ]


def test_numbers_and_single_labels_have_no_ties() -> None:
    assert not predictions("regression", None, torch.zeros(1, 1), precision="bf16")[0].near_tie
    assert not predictions("classification", ("only",), torch.zeros(1, 1), precision="bf16")[0].near_tie
    assert not tags(("O",), [torch.zeros(4, 1)], precision="bf16")[0].near_tie
    assert not tags(LABELS, [torch.zeros(0, 3)], precision="bf16")[0].near_tie
