"""Every metric on matrices small enough to compute by hand, and every error message."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from continual_petl import metrics

NAN = math.nan


def _f64(*values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# The score of task 0 rises and falls, the score of task 1 falls; scores above the diagonal are zero-shot.
R_TT = _f64([0.8, 0.4, 0.2], [0.9, 0.6, 0.3], [0.7, 0.5, 0.9])
REFERENCE_T = _f64(0.1, 0.3, 0.5)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("acc", (0.7 + 0.5 + 0.9) / 3),
        ("learning_accuracy", (0.8 + 0.6 + 0.9) / 3),
        ("average_accuracy_tri", (0.8 + 0.9 + 0.6 + 0.7 + 0.5 + 0.9) / 6),
        ("average_incremental_accuracy", (0.8 + (0.9 + 0.6) / 2 + (0.7 + 0.5 + 0.9) / 3) / 3),
        ("bwt_gem", (-0.1 - 0.1) / 2),
        ("bwt_gem_code", (-0.1 - 0.1) / 3),
        ("bwt_tri", (0.1 - 0.1 - 0.1) / 3),
        ("bwt_plus", 0.0),
        ("rem", 1 - 0.1 / 3),
        ("forgetting_max", (0.2 + 0.1) / 2),
        ("forgetting_max_all_rows", (0.2 + 0.1) / 2),
        ("forgetting_first", (0.1 + 0.1) / 2),
        ("fwt_tri", (0.4 + 0.2 + 0.3) / 3),
    ],
)
def test_metrics_match_a_manual_computation(name: str, expected: float) -> None:
    assert metrics.MATRIX_METRICS[name](R_TT).item() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fwt_gem", (0.1 - 0.2) / 2),
        ("fwt_gem_code", (0.1 - 0.2) / 3),
        ("fwt_plasticity", (0.3 + 0.4) / 2),
        ("intransigence", 0.5 - 0.9),
        ("intransigence_mean", (-0.7 - 0.3 - 0.4) / 3),
    ],
)
def test_metrics_match_a_manual_computation_with_references(name: str, expected: float) -> None:
    assert metrics.REFERENCE_METRICS[name](R_TT, REFERENCE_T).item() == pytest.approx(expected, abs=1e-15)


def test_zero_shot_peak_counts_only_in_variants_over_all_rows() -> None:
    peak_TT = _f64([0.5, 1.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.5, 0.5])
    assert metrics.forgetting_max(peak_TT).item() == 0.0
    assert metrics.forgetting_max_all_rows(peak_TT).item() == 0.25


def test_lower_triangular_matrix_has_all_backward_metrics_but_one() -> None:
    lower_TT = R_TT.masked_fill(torch.ones(3, 3).triu(1).bool(), NAN)
    unknown = {name for name, metric in metrics.MATRIX_METRICS.items() if metric(lower_TT).isnan()}
    assert unknown == {"forgetting_max_all_rows", "fwt_tri"}


AVERAGES = ["acc", "learning_accuracy", "average_accuracy_tri", "average_incremental_accuracy"]


@pytest.mark.parametrize("name", AVERAGES)
def test_single_task_has_an_average(name: str) -> None:
    assert metrics.MATRIX_METRICS[name](_f64([0.5])).item() == 0.5


@pytest.mark.parametrize("name", sorted(set(metrics.MATRIX_METRICS) - set(AVERAGES)))
def test_single_task_has_no_transfer_metrics(name: str) -> None:
    assert metrics.MATRIX_METRICS[name](_f64([0.5])).isnan()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fwt_gem", NAN),
        ("fwt_gem_code", NAN),
        ("fwt_plasticity", NAN),
        ("intransigence", 0.25),
        ("intransigence_mean", 0.25),
    ],
)
def test_single_task_with_reference(name: str, expected: float) -> None:
    found = metrics.REFERENCE_METRICS[name](_f64([0.5]), _f64(0.75)).item()
    assert found == pytest.approx(expected, nan_ok=True)


def test_fifteen_banks_of_two_percent_and_fifteen_full_copies() -> None:
    growth_T = torch.arange(15, dtype=torch.float64)
    assert metrics.ms(1 + 0.0221 * growth_T).item() == pytest.approx(0.87, abs=0.005)
    assert metrics.ms(1 + growth_T).item() == pytest.approx(0.22, abs=0.005)


def test_costs_are_at_best_one_and_a_missing_size_is_not_zero() -> None:
    assert metrics.ms(_f64(4, 2, 1)).item() == 1.0
    assert metrics.sss(_f64(0, 0), 5.0).item() == 1.0
    assert metrics.sss(_f64(9, 9), 5.0).item() == 0.0
    assert metrics.ce(_f64(10, 10), _f64(9, 9), epsilon=3.0).item() == 1.0
    assert metrics.ms(_f64(1, NAN)).isnan()
    assert metrics.sss(_f64(1, NAN), 5.0).isnan()
    assert metrics.ce(_f64(NAN), _f64(1), epsilon=1.0).isnan()
    assert metrics.cl_score(_f64(NAN, 1), _f64(0, 1)).isnan()
    assert metrics.cl_stability(_f64(NAN), _f64(1)).isnan()


@pytest.mark.parametrize("name", metrics.MATRIX_METRICS)
@pytest.mark.parametrize(
    ("wrong_TT", "fragments"),
    [
        (torch.zeros(2, 3, dtype=torch.float64), ["R_TT has shape (2, 3)", "(T, T)", "R_TT[:k, :k]"]),
        (torch.zeros(3, dtype=torch.float64), ["R_TT has shape (3,)"]),
        (torch.zeros(0, 0, dtype=torch.float64), ["R_TT has shape (0, 0)", "T >= 1"]),
        (torch.zeros(2, 2), ["torch.float32", "torch.float64", "R_TT.double()"]),
        (_f64([0, 0], [-math.inf, 0]), ["R_TT[1, 0] is infinite", "NaN where nothing was measured"]),
        (np.zeros((2, 3)), ["R_TT has shape (2, 3)", "(T, T)", "R_TT[:k, :k]"]),
        (np.zeros((2, 2), dtype=np.float32), ["R_TT has dtype float32", "R_TT.astype(float)"]),
        (np.array([[0, 0], [-math.inf, 0]]), ["R_TT[1, 0] is infinite"]),
    ],
)
def test_invalid_result_matrix_is_refused(name: str, wrong_TT: Any, fragments: list[str]) -> None:
    with pytest.raises(ValueError, match="R_TT") as caught:
        metrics.MATRIX_METRICS[name](wrong_TT)
    assert all(fragment in str(caught.value) for fragment in fragments)


@pytest.mark.parametrize("name", metrics.REFERENCE_METRICS)
@pytest.mark.parametrize(
    ("wrong_T", "fragments"),
    [
        (_f64(0.5, 0.5), ["_T has shape (2,)", "(3,), one value per task of R_TT"]),
        (_f64([0.5, 0.5, 0.5]), ["_T has shape (1, 3)"]),
        (torch.zeros(3), ["torch.float32", ".double()"]),
        (_f64(0, 0, math.inf), ["_T[2] is infinite"]),
    ],
)
def test_invalid_reference_is_refused(name: str, wrong_T: Tensor, fragments: list[str]) -> None:
    with pytest.raises(ValueError, match="_T") as caught:
        metrics.REFERENCE_METRICS[name](R_TT, wrong_T)
    assert all(fragment in str(caught.value) for fragment in fragments)


def test_invalid_costs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"memory_T\[1\] is 0.0, but must be > 0"):
        metrics.ms(_f64(1, 0))
    with pytest.raises(ValueError, match=r"memory_T\[0\] is -1.0, but must be >= 0"):
        metrics.sss(_f64(-1), 1.0)
    with pytest.raises(ValueError, match="data_memory is 0, but must be > 0"):
        metrics.sss(_f64(1), 0)
    with pytest.raises(ValueError, match=r"learn_ops_T has shape \(1,\), but pass_ops_T has \(2,\)"):
        metrics.ce(_f64(1, 2), _f64(1), epsilon=1.0)
    with pytest.raises(ValueError, match="epsilon is nan, but must be > 0"):
        metrics.ce(_f64(1), _f64(1), epsilon=NAN)
    with pytest.raises(ValueError, match=r"weights_C add up to 1.5, but must add up to 1"):
        metrics.cl_score(_f64(1, 1), _f64(1, 0.5))
    with pytest.raises(ValueError, match=r"weights_C has shape \(1,\), but must have shape \(2,\)"):
        metrics.cl_stability(_f64(1, 1), _f64(1))
