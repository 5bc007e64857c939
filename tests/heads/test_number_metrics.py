"""Scores of numbers equal those of numpy, scipy and scikit-learn, also where float32 would not do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from continual_petl.heads.metric_names import ERROR_NAMES
from continual_petl.heads.number_metrics import NumberMetrics, single_precision_metrics
from continual_petl.learner.metrics import make_metrics
from tests.kinds import METRICS

Array = np.ndarray[Any, np.dtype[np.float64]]


def scores_of(predicted: Array, targets: Array, parts: int = 1) -> dict[str, float]:
    scores = NumberMetrics()
    for one, other in zip(np.array_split(predicted, parts), np.array_split(targets, parts), strict=True):
        scores.update(torch.from_numpy(one), torch.from_numpy(other))
    return {name: value.item() for name, value in scores.compute().items()}


def expected(predicted: Array, targets: Array) -> dict[str, float]:
    return {
        "spearman": spearmanr(predicted, targets).statistic,
        "pearson": np.corrcoef(predicted, targets)[0, 1],
        "rmse": sklearn.metrics.root_mean_squared_error(targets, predicted),
        "mae": sklearn.metrics.mean_absolute_error(targets, predicted),
        "rmse_of_mean": sklearn.metrics.root_mean_squared_error(targets, np.full(len(targets), targets.mean())),
        "mae_of_mean": sklearn.metrics.mean_absolute_error(targets, np.full(len(targets), targets.mean())),
    }


@pytest.mark.parametrize(("mean", "deviation"), [(0, 1), (1e6, 1), (1.6e9, 1), (-120, 20), (0, 1e-30), (1e30, 1e29)])
def test_scores_equal_other_libraries(mean: float, deviation: float) -> None:
    draw = np.random.default_rng(3)
    targets = mean + deviation * draw.standard_normal(300)
    predicted = targets + 0.5 * deviation * draw.standard_normal(300)
    found = scores_of(predicted, targets, parts=7)
    assert found == pytest.approx(expected(predicted, targets), rel=1e-7)
    assert {*found} == {*METRICS["regression"], *ERROR_NAMES}


def test_float32_would_not_do() -> None:
    """This is what the scores are computed in float64 for."""
    draw = np.random.default_rng(3)
    targets = 1e6 + draw.standard_normal(300)
    predicted = targets + draw.standard_normal(300)
    old: Any = single_precision_metrics()["pearson"]
    old.update(torch.from_numpy(predicted).float(), torch.from_numpy(targets).float())
    true = np.corrcoef(predicted, targets)[0, 1]
    assert abs(float(old.compute()) - true) > 1e-4
    assert abs(scores_of(predicted, targets)["pearson"] - true) < 1e-12


def test_a_mean_that_float64_rounds_changes_no_score() -> None:
    draw = np.random.default_rng(0)
    targets = 1e15 + 3 * draw.standard_normal(40)
    predicted = targets + 2 * draw.standard_normal(40)
    # Around 1e15 float64 has eighths, so all of these differences are exact.
    assert scores_of(predicted, targets) == pytest.approx(expected(predicted - 1e15, targets - 1e15), rel=1e-12)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=30), st.integers(0, 2**50))
def test_ties_share_their_mean_rank(pairs: list[tuple[int, int]], offset: int) -> None:
    predicted, targets = (np.array(column, dtype=np.float64) + offset for column in zip(*pairs, strict=True))
    found = scores_of(predicted, targets)["spearman"]
    if len({*predicted}) == 1 or len({*targets}) == 1:
        assert np.isnan(found)
    else:
        assert found == pytest.approx(spearmanr(predicted, targets).statistic, abs=1e-9)


@pytest.mark.parametrize("unit", [1e-300, 1e300])
def test_no_unit_is_too_large_or_too_small(unit: float) -> None:
    targets, predicted = np.array([0.1, 0.5, 0.9]), np.array([0.2, 0.4, 1.0])
    found, one = scores_of(predicted * unit, targets * unit), scores_of(predicted, targets)
    for name, value in one.items():
        assert found[name] == pytest.approx(value * (unit if name in ERROR_NAMES else 1), rel=1e-9), name


def test_predictions_that_are_not_finite_have_no_correlation() -> None:
    found = scores_of(np.array([1.0, np.nan, 2.0]), np.array([1.0, 2.0, 3.0]))
    assert np.isnan([found[name] for name in ("spearman", "pearson", "rmse", "mae")]).all()
    assert found["rmse_of_mean"] == pytest.approx(np.std([1, 2, 3]))


def test_old_certificates_keep_their_scores() -> None:
    scores = make_metrics("regression", None, single_precision=True)
    scores.update(torch.tensor([1.0, 2, 4]), torch.tensor([1.0, 3, 2]))
    assert {*scores.compute()} == {"spearman", "pearson"}
