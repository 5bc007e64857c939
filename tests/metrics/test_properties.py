"""Properties of metrics for any R: agreement with plain Python, exact zeros, invariances, NaN for missing scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from continual_petl.metrics import MATRIX_METRICS, REFERENCE_METRICS
from tests.metrics import plain

QUICK = settings(max_examples=10, deadline=None, derandomize=True, database=None)
LONG = settings(QUICK, max_examples=500, suppress_health_check=[HealthCheck.too_slow])

ALL = [*MATRIX_METRICS, *REFERENCE_METRICS]
BACKWARD_ZERO = ["bwt_gem", "bwt_gem_code", "bwt_tri", "bwt_plus", "forgetting_max", "forgetting_first"]
DIFFERENCES = [*BACKWARD_ZERO, "rem", "forgetting_max_all_rows"]

scores = st.floats(0, 1, allow_subnormal=False)


@st.composite
def results(draw: st.DrawFn, min_tasks: int = 2) -> tuple[Tensor, Tensor]:
    """Draw a result matrix and one reference score per task."""
    num_tasks = draw(st.integers(min_tasks, 7))
    rows = draw(st.lists(st.lists(scores, min_size=num_tasks, max_size=num_tasks), min_size=num_tasks + 1,
                         max_size=num_tasks + 1))  # fmt: skip
    values = torch.tensor(rows, dtype=torch.float64)
    return values[:-1], values[-1]


def _value(name: str, R_TT: Tensor, reference_T: Tensor) -> Tensor:
    if name in MATRIX_METRICS:
        return MATRIX_METRICS[name](R_TT)
    return REFERENCE_METRICS[name](R_TT, reference_T)


def _plain_value(name: str, R_TT: Tensor, reference_T: Tensor) -> float:
    arguments = [R_TT.tolist()] if name in MATRIX_METRICS else [R_TT.tolist(), reference_T.tolist()]
    restated: Callable[..., float] = getattr(plain, name)
    return restated(*arguments)


def test_every_metric_has_a_plain_restatement() -> None:
    assert [name for name in ALL if not hasattr(plain, name)] == []


@pytest.mark.parametrize("name", ALL)
@QUICK
@given(result=results())
def test_agrees_with_plain_python(name: str, result: tuple[Tensor, Tensor]) -> None:
    # The order of summation differs, hence the tolerance: a few units in the last place of a float64 near 1.
    assert _value(name, *result).item() == pytest.approx(_plain_value(name, *result), rel=0, abs=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
@LONG
@given(result=results())
def test_agrees_with_plain_python_many_examples(name: str, result: tuple[Tensor, Tensor]) -> None:
    assert _value(name, *result).item() == pytest.approx(_plain_value(name, *result), rel=0, abs=1e-14)


@pytest.mark.parametrize("name", ALL)
@QUICK
@given(result=results())
def test_returns_a_float64_scalar_and_does_not_modify_arguments(name: str, result: tuple[Tensor, Tensor]) -> None:
    before = [each.clone() for each in result]
    found = _value(name, *result)
    assert found.shape == ()
    assert found.dtype == torch.float64
    assert all(torch.equal(new, old) for new, old in zip(result, before, strict=True))


@pytest.mark.parametrize("name", ALL)
@QUICK
@given(result=results(min_tasks=1))
def test_arrays_and_tensors_give_identical_values(name: str, result: tuple[Tensor, Tensor]) -> None:
    arrays = [each.numpy() for each in result]
    metrics: dict[str, Callable[..., Any]] = {**MATRIX_METRICS, **REFERENCE_METRICS}
    metric = metrics[name]
    found = metric(arrays[0]) if name in MATRIX_METRICS else metric(*arrays)
    assert isinstance(found, np.ndarray)
    assert (found.shape, found.dtype) == ((), np.float64)
    assert found.tobytes() == _value(name, *result).numpy().tobytes()


@pytest.mark.parametrize("name", BACKWARD_ZERO)
@QUICK
@given(result=results())
def test_constant_scores_give_exactly_zero(name: str, result: tuple[Tensor, Tensor]) -> None:
    constant_TT = result[1].expand(len(result[1]), -1)
    unlearned_TT = torch.rand(constant_TT.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    R_TT = constant_TT.tril() + unlearned_TT.triu(1)  # the score of a task before it is learned does not matter
    assert MATRIX_METRICS[name](R_TT).item() == 0.0


@QUICK
@given(result=results())
def test_constant_scores_count_as_remembered(result: tuple[Tensor, Tensor]) -> None:
    constant_TT = result[1].expand(len(result[1]), -1)
    assert MATRIX_METRICS["rem"](constant_TT).item() == 1.0
    assert MATRIX_METRICS["forgetting_max_all_rows"](constant_TT).item() == 0.0
    assert torch.equal(MATRIX_METRICS["acc"](constant_TT), MATRIX_METRICS["learning_accuracy"](constant_TT))


@pytest.mark.parametrize("name", DIFFERENCES)
@QUICK
@given(result=results(), shift=st.integers(-8, 8))
def test_differences_are_invariant_to_a_constant(name: str, result: tuple[Tensor, Tensor], shift: int) -> None:
    shifted = MATRIX_METRICS[name](result[0] + shift)
    assert shifted.item() == pytest.approx(MATRIX_METRICS[name](result[0]).item(), abs=1e-13)


@pytest.mark.parametrize("name", REFERENCE_METRICS)
@QUICK
@given(result=results(), shift=st.integers(-8, 8))
def test_adding_a_constant_to_scores_and_references_changes_nothing(
    name: str, result: tuple[Tensor, Tensor], shift: int
) -> None:
    shifted = REFERENCE_METRICS[name](result[0] + shift, result[1] + shift)
    assert shifted.item() == pytest.approx(REFERENCE_METRICS[name](*result).item(), abs=1e-13)


@QUICK
@given(result=results(), data=st.data())
def test_average_is_invariant_to_task_order(result: tuple[Tensor, Tensor], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(result[1]))))
    permuted_TT = result[0][:, order]
    found, expected = MATRIX_METRICS["acc"](permuted_TT), MATRIX_METRICS["acc"](result[0])
    assert found.item() == pytest.approx(expected.item(), abs=1e-14)


@pytest.mark.parametrize("name", ["bwt_gem", "bwt_gem_code", "forgetting_first", "intransigence_mean"])
@QUICK
@given(result=results(), data=st.data())
def test_earlier_tasks_can_be_permuted(name: str, result: tuple[Tensor, Tensor], data: st.DataObject) -> None:
    """Only the last task is special: R with rows and columns permuted in the same way has the same value."""
    last = len(result[1]) - 1
    order = [*data.draw(st.permutations(range(last))), last]
    R_TT, reference_T = result
    found = _value(name, R_TT[order][:, order], reference_T[order])
    assert found.item() == pytest.approx(_value(name, *result).item(), abs=1e-14)


@QUICK
@given(result=results())
def test_variants_are_related_as_named(result: tuple[Tensor, Tensor]) -> None:
    R_TT, reference_T = result
    value = {name: _value(name, R_TT, reference_T).item() for name in ALL}
    assert value["forgetting_first"] == -value["bwt_gem"]
    assert value["forgetting_max_all_rows"] >= value["forgetting_max"] >= value["forgetting_first"]
    assert value["bwt_plus"] == max(value["bwt_tri"], 0)
    assert value["bwt_plus"] == 0 or value["rem"] == 1
    assert abs(value["bwt_gem_code"]) <= abs(value["bwt_gem"])
    assert abs(value["fwt_gem_code"]) <= abs(value["fwt_gem"])


@pytest.mark.parametrize("name", ALL)
@QUICK
@given(result=results())
def test_only_the_cells_of_the_formula_are_read(name: str, result: tuple[Tensor, Tensor]) -> None:
    R_TT, reference_T = result
    needed = plain.needed(name, len(R_TT))
    sparse_TT = torch.full_like(R_TT, torch.nan)
    for i, j in needed:
        sparse_TT[i, j] = R_TT[i, j]
    assert torch.equal(_value(name, sparse_TT, reference_T), _value(name, R_TT, reference_T))


@pytest.mark.parametrize("name", ALL)
@QUICK
@given(result=results(), data=st.data())
def test_missing_required_score_makes_the_value_missing(
    name: str, result: tuple[Tensor, Tensor], data: st.DataObject
) -> None:
    R_TT = result[0].clone()
    i, j = data.draw(st.sampled_from(sorted(plain.needed(name, len(R_TT)))))
    R_TT[i, j] = torch.nan
    assert _value(name, R_TT, result[1]).isnan()


@pytest.mark.parametrize("name", REFERENCE_METRICS)
@QUICK
@given(result=results())
def test_a_missing_reference_makes_the_value_missing(name: str, result: tuple[Tensor, Tensor]) -> None:
    reference_T = result[1].clone()
    reference_T[-1] = torch.nan
    assert REFERENCE_METRICS[name](result[0], reference_T).isnan()
