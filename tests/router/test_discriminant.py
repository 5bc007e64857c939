"""The router agrees with torch's normal distributions, and does not depend on the order of learning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily, MultivariateNormal

from continual_petl.errors import InputError
from continual_petl.router.discriminant import Router, probabilities, shrinkage
from continual_petl.router.sums import (
    MIN_ROWS_PER_LABEL,
    ONE,
    OWN_SHRINKAGE,
    QUANTILES,
    Array,
    TaskSums,
    shrunk,
    sums_of,
)
from continual_petl.router.totals import Totals

NAMES = ("a", "b", "c", "d")


def _states(seed: int, num_rows: int = 60, width: int = 6) -> Array:
    draw = np.random.default_rng(seed)
    states = draw.normal(size=(num_rows, width)) + 2 * draw.normal(size=width)
    return np.asarray(states / np.linalg.norm(states, axis=1, keepdims=True), dtype=np.float64)


def _sums(seed: int, num_rows: int = 60) -> TaskSums:
    return sums_of(_states(seed, num_rows), (2,), _states(seed + 100, 40))


def _log_prob(normal: Distribution, rows: Tensor) -> Tensor:
    found: Tensor = normal.log_prob(rows)
    return found


def router_of(sums: Mapping[str, TaskSums]) -> Router:
    """Return a router for tasks that are added in the given order."""
    totals = Totals()
    for name, own in sums.items():
        totals.add(name, name, own)
    return Router(totals, dict(sums).__getitem__)


ALL = {name: _sums(seed, 40 + 10 * seed) for seed, name in enumerate(NAMES)}


def test_scores_are_log_probabilities_of_normal_distributions_up_to_a_constant_per_row() -> None:
    scores_NT = router_of(ALL).scores(rows := _states(9))
    states = {name: _states(seed, 40 + 10 * seed) for seed, name in enumerate(NAMES)}
    centred = torch.from_numpy(np.concatenate([own - own.mean(0) for own in states.values()]))
    covariance = torch.from_numpy(shrunk((centred.T @ centred / len(centred)).numpy(), shrinkage(len(centred), 6)))
    expected = torch.stack(
        [
            _log_prob(MultivariateNormal(torch.from_numpy(own.mean(0)), covariance), torch.from_numpy(rows))
            for own in states.values()
        ],
        dim=1,
    )
    torch.testing.assert_close(
        torch.from_numpy(scores_NT - scores_NT[:, :1]), expected - expected[:, :1], rtol=1e-5, atol=1e-5
    )
    shares = probabilities(scores_NT)
    torch.testing.assert_close(torch.from_numpy(shares), expected.softmax(-1), rtol=1e-4, atol=1e-5)


def test_distances_are_those_of_the_tasks_own_normal_distribution() -> None:
    states, rows = _states(1), _states(5)
    sums = sums_of(states, (2,), rows)
    centred = states - states.mean(0)
    covariance = torch.from_numpy(shrunk(centred.T @ centred / len(states), OWN_SHRINKAGE))
    own = MultivariateNormal(torch.from_numpy(states.mean(0)), covariance)
    at_mean = _log_prob(own, own.loc)
    expected = 2 * (at_mean - _log_prob(own, torch.from_numpy(rows)))
    found = torch.from_numpy(sums.distances(rows, sums.precision()))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sums.distances_Q, np.quantile(found.numpy(), QUANTILES))


def _labelled(seed: int, num_rows: int = 60) -> tuple[Array, NDArray[np.int64]]:
    states, labels = _states(seed, num_rows), np.arange(num_rows) % 3
    moved = states + 0.4 * np.random.default_rng(seed).normal(size=(3, states.shape[1]))[labels]
    return moved / np.linalg.norm(moved, axis=1, keepdims=True), labels


def test_score_is_the_mean_of_the_mixture_of_labels_and_the_normal_distribution_of_the_task() -> None:
    rows, tasks = _states(9), {name: _labelled(seed) for seed, name in enumerate("ab")}
    sums = {name: sums_of(states, (2,), states, labels) for name, (states, labels) in tasks.items()}
    assert all(own.counts_C.tolist() == [20, 20, 20] for own in sums.values())
    means = {
        name: np.stack([states[labels == c].mean(0) for c in range(3)]) for name, (states, labels) in tasks.items()
    }
    weight = shrinkage(120, 6)
    around = np.concatenate([states - means[name][labels] for name, (states, labels) in tasks.items()])
    within = torch.from_numpy(shrunk(around.T @ around / 120, weight))
    centred = np.concatenate([states - states.mean(0) for states, _ in tasks.values()])
    total = torch.from_numpy(shrunk(centred.T @ centred / 120, weight))
    equal = Categorical(torch.full((3,), 1 / 3, dtype=torch.float64))
    of_labels = [MixtureSameFamily(equal, MultivariateNormal(torch.from_numpy(means[name]), within)) for name in "ab"]
    of_tasks = [MultivariateNormal(torch.from_numpy(tasks[name][0].mean(0)), total) for name in "ab"]
    expected = torch.stack(
        [
            (_log_prob(labels, torch.from_numpy(rows)) + _log_prob(task, torch.from_numpy(rows))) / 2
            for labels, task in zip(of_labels, of_tasks, strict=True)
        ],
        dim=1,
    )
    found = torch.from_numpy(router_of(sums).scores(rows))
    torch.testing.assert_close(found - found[:, :1], expected - expected[:, :1], rtol=1e-4, atol=1e-4)
    nearest = [min((row - mean) @ sums["a"].precision() @ (row - mean) for mean in means["a"]) for row in rows]
    np.testing.assert_allclose(sums["a"].distances(rows, sums["a"].precision()), nearest, rtol=1e-6)


def test_labels_with_few_rows_leave_only_the_mean_of_all_rows() -> None:
    states = _states(1)
    few = np.zeros(60, dtype=np.int64)
    few[: MIN_ROWS_PER_LABEL - 1] = 1
    alone, without = sums_of(states, (2,), states, few), sums_of(states, (2,), states)
    assert alone.means_CF.shape == (1, 6)
    assert all(np.array_equal(own, without.to_arrays()[name]) for name, own in alone.to_arrays().items())
    few[MIN_ROWS_PER_LABEL - 1] = 1
    assert sums_of(states, (2,), states, few).means_CF.shape == (2, 6)


@given(st.permutations(NAMES))
@settings(max_examples=24, deadline=None)
def test_the_order_of_learning_does_not_change_one_bit(order: list[str]) -> None:
    rows = _states(9)
    assert np.array_equal(router_of({name: ALL[name] for name in order}).scores(rows), router_of(ALL).scores(rows))


def test_a_row_far_from_all_validation_rows_is_unknown() -> None:
    router = router_of(ALL)
    far, near = -5 * np.ones((1, 6)), ALL["a"].means_CF
    assert (router.excess(far, "a")[0] > 0).tolist() == [True]
    assert (router.excess(near, "a")[0] > 0).tolist() == [False]


def test_few_inverse_covariances_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("continual_petl.router.discriminant.MAX_PRECISIONS", 2)
    router, row = router_of(ALL), ALL["a"].means_CF
    for name in (*NAMES, *NAMES):
        router.excess(row, name)
    assert len(router._known) == 2


def test_tasks_of_different_layers_are_refused() -> None:
    with pytest.raises(InputError, match=r"different settings of routing \(layers read: a \[2\], b \[1\]\)"):
        router_of({"a": ALL["a"], "b": replace(ALL["b"], layers=(1,))})


def test_rows_that_are_all_the_same_give_a_finite_router() -> None:
    same = np.tile(_states(1)[:1], (5, 1))
    sums = sums_of(same, (1,), same)
    assert np.isfinite(router_of({"same": sums, "other": replace(ALL["a"], layers=(1,))}).scores(same)).all()
    assert np.isfinite(sums.distances_Q).all()


def test_stored_arrays_are_read_back_exactly() -> None:
    sums = ALL["c"]
    again = TaskSums.from_arrays(sums.to_arrays())
    assert again.to_arrays().keys() == sums.to_arrays().keys()
    assert all(np.array_equal(own, sums.to_arrays()[name]) for name, own in again.to_arrays().items())
    assert abs(np.asarray(again.covariance_U, np.int64)).max() <= ONE


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("counts_C", np.asarray([0], np.int64), r"counts \[0\]"),
        ("counts_C", np.asarray([1, 2], np.int64), "1 means, but row counts for 2"),
        ("counts_C", np.asarray(3, np.int64), "number of dimensions"),
        ("means_CF", np.zeros((0, 6)), "0 means"),
        ("layers_K", np.asarray([], np.int64), "0 layers"),
        ("layers_K", np.asarray([1, 2, 3, 4], np.int64), "4 layers"),
        ("means_CF", np.full((1, 6), np.nan), "not finite"),
        ("means_CF", np.zeros((1, 6), np.float32), "with their dtypes"),
        ("covariance_U", np.zeros(20, np.int32), "wrong shapes"),
        ("distances_Q", np.zeros(3), "wrong shapes"),
        ("more", np.zeros(3), "expected the arrays"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(name: str, value: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TaskSums.from_arrays({**ALL["a"].to_arrays(), name: value})
