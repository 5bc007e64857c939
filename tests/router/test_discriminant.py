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
from safetensors.numpy import save
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily, MultivariateNormal

from continual_petl.errors import InputError, StoreError
from continual_petl.router.discriminant import CONFIDENCE, FEW, Router, shrinkage
from continual_petl.router.known import QUANTILES, Quantiles
from continual_petl.router.sums import (
    FEATURE_COLUMNS,
    FEATURE_SHRINKAGE,
    LEAST_COLUMNS,
    MAX_BYTES,
    MIN_ROWS_PER_LABEL,
    ONE,
    OWN_SHRINKAGE,
    STATES_WEIGHT,
    Array,
    TaskSums,
    VectorsRead,
    first_sums_of,
    shrunk,
    sums_of,
)
from continual_petl.router.totals import Totals
from tests.router.rows import read_of, states_of
from tests.router.test_clusters import dense

NAMES = ("a", "b", "c", "d")


_states = states_of


def _sums(seed: int, num_rows: int = 60) -> TaskSums:
    return sums_of(read_of(_states(seed, num_rows), _states(seed + 100, 40)), "full")


def _with_vectors(seed: int) -> tuple[TaskSums, VectorsRead, Array]:
    """Return the statistics of a task of two labels with a bank, and what they were computed from."""
    draw, labels = np.random.default_rng(seed), np.arange(60) % 2
    vectors = VectorsRead(
        train=np.arange(60),
        train_ND=5 * draw.normal(size=(60, 4)) + 20 * labels[:, None],
        validation_ND=5 * draw.normal(size=(40, 4)) + 20 * (np.arange(40) % 2)[:, None],
    )
    validation = _states(seed, 100)[60:]
    return sums_of(read_of(_states(seed, 60), validation, labels), "compact", vectors), vectors, validation


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
    shares = router_of(ALL).probabilities(scores_NT)
    torch.testing.assert_close(torch.from_numpy(shares), (CONFIDENCE * expected).softmax(-1), rtol=1e-4, atol=1e-5)


def test_distances_are_those_of_the_tasks_own_normal_distribution() -> None:
    states, rows = _states(1), _states(5)
    sums = first_sums_of(read_of(states, rows))
    centred = states - states.mean(0)
    covariance = torch.from_numpy(shrunk(centred.T @ centred / len(states), OWN_SHRINKAGE))
    own = MultivariateNormal(torch.from_numpy(states.mean(0)), covariance)
    at_mean = _log_prob(own, own.loc)
    expected = 2 * (at_mean - _log_prob(own, torch.from_numpy(rows)))
    found = torch.from_numpy(sums.squared_distances(rows))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert isinstance(sums.known, Quantiles)
    np.testing.assert_allclose(sums.known.distances_Q, np.quantile(found.numpy(), QUANTILES))


def _nearest(rows: Array, means: Array, covariance: Array, weight: float) -> Array:
    """Return Mahalanobis distances from the nearest mean, one row and mean at a time."""
    inverse = np.linalg.inv(shrunk(covariance, weight))
    return np.array([min(np.sqrt((row - mean) @ inverse @ (row - mean)) for mean in means) for row in rows])


def test_distance_is_the_weighted_mean_of_what_the_backbone_and_the_bank_see() -> None:
    sums, vectors, validation = _with_vectors(1)
    rows, seen = _states(5, 7), np.random.default_rng(7).normal(size=(7, 4)) * 10
    assert sums.features is not None
    assert sums.states is not None
    scale = 2.0**sums.features.power
    assert scale / 4 <= max(np.abs(vectors.train_ND).max(), np.abs(vectors.validation_ND).max()) < scale

    def both(states: Array, features: Array) -> tuple[Array, Array]:
        assert sums.features is not None
        return (
            _nearest(states, sums.means_CF, dense(sums.covariance), OWN_SHRINKAGE),
            _nearest(
                features / scale, sums.features.means.values_CF, dense(sums.features.covariance), FEATURE_SHRINKAGE
            ),
        )

    own, of_bank = both(validation, vectors.validation_ND)
    states, features = both(rows, seen)
    parts = []
    for far, near, moments in ((states, own, sums.states), (features, of_bank, sums.features.moments)):
        assert moments.mean == pytest.approx(near.mean())
        parts.append((far - near.mean()) / moments.deviation)
    far, slack = sums.distances(rows, seen, (0.02, 0.1))
    np.testing.assert_allclose(far, (STATES_WEIGHT * parts[0] + parts[1]) / (STATES_WEIGHT + 1), rtol=1e-6, atol=1e-8)
    moved = (
        STATES_WEIGHT * 0.02 * states / sums.states.deviation + 0.1 * features / sums.features.moments.deviation
    ) / (STATES_WEIGHT + 1)
    np.testing.assert_allclose(slack, moved, rtol=1e-6)
    share, least, most = sums.shares(rows, seen, (0.02, 0.1))
    np.testing.assert_allclose(share, sums.known.share(far))
    np.testing.assert_allclose(least, sums.known.share(far + moved))
    np.testing.assert_allclose(most, sums.known.share(far - moved))


def _labelled(seed: int, num_rows: int = 60) -> tuple[Array, NDArray[np.int64]]:
    states, labels = _states(seed, num_rows), np.arange(num_rows) % 3
    moved = states + 0.4 * np.random.default_rng(seed).normal(size=(3, states.shape[1]))[labels]
    return moved / np.linalg.norm(moved, axis=1, keepdims=True), labels


def test_score_is_the_mean_of_the_mixture_of_labels_and_the_normal_distribution_of_the_task() -> None:
    rows, tasks = _states(9), {name: _labelled(seed) for seed, name in enumerate("ab")}
    sums = {name: first_sums_of(read_of(states, states, labels)) for name, (states, labels) in tasks.items()}
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
    scores = torch.from_numpy(router_of(sums).label_scores(rows, "b"))
    own = torch.stack(
        [_log_prob(MultivariateNormal(torch.from_numpy(mean), within), torch.from_numpy(rows)) for mean in means["b"]],
        dim=1,
    )
    torch.testing.assert_close(scores - scores[:, :1], own - own[:, :1], rtol=1e-4, atol=1e-4)


def test_labels_with_few_rows_leave_only_the_mean_of_all_rows() -> None:
    states = _states(1)
    few = np.zeros(60, dtype=np.int64)
    few[: MIN_ROWS_PER_LABEL - 1] = 1
    alone, without = (sums_of(read_of(states, states, labels)) for labels in (few, None))
    assert alone.means_CF.shape == (1, 6)
    assert all(np.array_equal(own, without.to_arrays()[name]) for name, own in alone.to_arrays().items())
    few[MIN_ROWS_PER_LABEL - 1] = 1
    assert sums_of(read_of(states, states, few)).means_CF.shape == (2, 6)


@pytest.mark.parametrize(("num_labels", "depth", "means"), [(2, 384, 2), (15, 384, 15), (60, 384, 1), (60, 0, 60)])
def test_compact_statistics_never_exceed_their_bytes(num_labels: int, depth: int, means: int) -> None:
    width, num_rows = 1152, 12 * num_labels
    draw = np.random.default_rng(0)
    rows = read_of(
        draw.normal(size=(num_rows, width)) / 34, draw.normal(size=(20, width)) / 34, np.arange(num_rows) % num_labels
    )
    vectors = VectorsRead(
        train=np.arange(num_rows),
        train_ND=draw.normal(size=(num_rows, depth)),
        validation_ND=draw.normal(size=(20, depth)),
    )
    sums = sums_of(rows, "compact", vectors if depth else None)
    stored = save({name: np.ascontiguousarray(array) for name, array in sums.to_arrays().items()})
    assert len(stored) <= MAX_BYTES
    assert len(sums.means_CF) == means
    columns = sums.to_arrays()["powers_R"].shape[0]
    assert columns >= min(LEAST_COLUMNS, num_rows - means - 1)
    assert not depth or sums.to_arrays()["features_powers_R"].shape == (FEATURE_COLUMNS,)


@given(st.permutations(NAMES))
@settings(max_examples=24, deadline=None)
def test_the_order_of_learning_does_not_change_one_bit(order: list[str]) -> None:
    rows = _states(9)
    assert np.array_equal(router_of({name: ALL[name] for name in order}).scores(rows), router_of(ALL).scores(rows))


def test_a_row_far_from_all_validation_rows_has_no_share() -> None:
    for sums in (ALL["a"], first_sums_of(read_of(_states(0, 40), _states(100, 40)))):
        far, near = -5 * np.ones((1, 6)), sums.means_CF
        assert sums.shares(far, None)[0].tolist() == pytest.approx([0.0], abs=1e-6)
        assert sums.shares(near, None)[0] > 0.9


def test_the_statistics_of_few_tasks_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("continual_petl.router.discriminant.MAX_KEPT", 2)
    reads: list[str] = []
    totals = Totals()
    for name, own in ALL.items():
        totals.add(name, name, own)

    def read(task: str) -> TaskSums:
        reads.append(task)
        return ALL[task]

    router = Router(totals, read)
    for name in ("a", "a", "b", "a", "c", "a", "b"):
        assert router.sums(name) is ALL[name]
    assert reads == ["a", "b", "c", "b"]


def test_a_task_that_lost_its_statistics_meanwhile_is_named() -> None:
    totals = Totals()
    totals.add("a", "a", ALL["a"])
    with pytest.raises(StoreError, match="task 'a' was replaced by one without routing statistics: try again"):
        Router(totals, lambda task: None).sums("a")


def test_labels_with_few_of_the_drawn_rows_leave_one_mean_of_the_vectors() -> None:
    _, vectors, validation = _with_vectors(1)
    labels = np.arange(60) % 2
    for drawn, expected in ((np.arange(2 * MIN_ROWS_PER_LABEL), 2), (np.arange(2 * MIN_ROWS_PER_LABEL - 1), 1)):
        few = replace(vectors, train=drawn, train_ND=vectors.train_ND[drawn])
        sums = sums_of(read_of(_states(1), validation, labels), vectors=few)
        assert sums.features is not None
        assert (len(sums.means_CF), len(sums.features.means.values_CF)) == (2, expected)


@pytest.mark.parametrize(("number", "num_labels"), [(5, 1), (40, 1), (9, 2), (15, 2)])
def test_scores_of_many_means_are_those_of_few(number: int, num_labels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("continual_petl.router.discriminant.NUM_AT_ONCE", 7)
    sums = {
        f"task-{seed}": sums_of(read_of(_states(seed, 40), _states(seed), np.arange(40) % num_labels), "full")
        for seed in range(number)
    }
    rows, router, width = _states(9), router_of(sums), 6
    assert (number * num_labels > FEW * width) == (number > 9)  # above, rows are multiplied by the inverse

    def density(means: Array, covariance: Array) -> Array:
        inverse = np.linalg.inv(shrunk(covariance, shrinkage(40 * number, width)))
        return np.array([[-0.5 * (row - mean) @ inverse @ (row - mean) for mean in means] for row in rows])

    within = np.mean([dense(own.covariance) for own in sums.values()], axis=0)
    apart = np.concatenate([own.means_CF - own.means_CF.mean(0) for own in sums.values()])
    of_tasks = density(np.stack([own.means_CF.mean(0) for own in sums.values()]), within + apart.T @ apart / len(apart))
    of_labels = np.stack([density(own.means_CF, within) for own in sums.values()], axis=1)
    found = router.scores(rows)[:, [router.tasks.index(name) for name in sums]]
    wanted = (np.log(np.exp(of_labels).mean(2)) + of_tasks) / 2
    np.testing.assert_allclose(found - found[:, :1], wanted - wanted[:, :1], rtol=1e-5, atol=1e-5)
    assert np.allclose(
        router.scores(rows[:1]), router.scores(rows)[:1], rtol=1e-10, atol=1e-10
    )  # sums in another order
    own = router.label_scores(rows, "task-4")
    np.testing.assert_allclose(own - own[:, :1], of_labels[:, 4] - of_labels[:, 4, :1], rtol=1e-5, atol=1e-5)


def test_tasks_of_different_layers_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"different settings of routing \(layers read: a \[2\], 6 values; b \[1\], 6 values\)"
    ):
        router_of({"a": ALL["a"], "b": replace(ALL["b"], layers=(1,))})


def test_tasks_of_another_size_or_an_earlier_release_are_refused() -> None:
    wide = sums_of(read_of(_states(1, 60, 8), _states(2, 20, 8)))
    with pytest.raises(InputError, match=r"a \[2\], 6 values; wide \[2\], 8 values"):
        router_of({"a": ALL["a"], "wide": wide})
    with pytest.raises(InputError, match=r"a \[2\], 6 values; b \[2\], 6 values, of an earlier release"):
        router_of({"a": ALL["a"], "b": first_sums_of(read_of(_states(1), _states(2)))})


def test_probabilities_of_an_earlier_release_are_a_plain_softmax() -> None:
    sums = {name: first_sums_of(read_of(_states(seed), _states(seed + 9))) for seed, name in enumerate("ab")}
    scores = torch.tensor([[1.0, 3.0]], dtype=torch.float64)
    np.testing.assert_allclose(router_of(sums).probabilities(scores.numpy()), scores.softmax(-1))


def test_rows_that_are_all_the_same_give_a_finite_router() -> None:
    same = np.tile(_states(1)[:1], (5, 1))
    for make in (sums_of, first_sums_of):
        sums = make(read_of(same, same, layers=(1,)))
        other = make(read_of(_states(2), _states(3), layers=(1,)))
        assert np.isfinite(router_of({"same": sums, "other": other}).scores(same)).all()
        assert sums.shares(same, None)[0].min() > 0.3
        assert np.isfinite(sums.shares(_states(4), None, (1e-5, 1e-5))).all()


FORMS = {
    "first": first_sums_of(read_of(_states(2), _states(102, 40))),
    "full": ALL["c"],
    "compact": sums_of(read_of(_states(2), _states(102, 40)), reject=0.05, label_weight=0.2),
    "with vectors": _with_vectors(3)[0],
}


@pytest.mark.parametrize("form", FORMS)
def test_stored_arrays_are_read_back_exactly(form: str) -> None:
    sums = FORMS[form]
    again = TaskSums.from_arrays(sums.to_arrays())
    assert again.to_arrays().keys() == sums.to_arrays().keys()
    assert all(np.array_equal(own, sums.to_arrays()[name]) for name, own in again.to_arrays().items())
    assert (again.reject, again.label_weight) == (sums.reject, sums.label_weight)
    assert abs(sums.covariance.upper_U).max() <= ONE
    vectors = np.ones((3, 4)) if form == "with vectors" else None
    for one, other in zip(
        again.shares(_states(9, 3), vectors, (0.1, 0.1)), sums.shares(_states(9, 3), vectors, (0.1, 0.1)), strict=True
    ):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("form", "name", "value", "message"),
    [
        ("first", "counts_C", np.asarray([0], np.int64), r"counts \[0\]"),
        ("full", "counts_C", np.asarray([1, 2], np.int64), "1 means, but row counts for 2"),
        ("compact", "counts_C", np.asarray(3, np.int64), "number of dimensions"),
        ("first", "means_CF", np.zeros((0, 6)), "0 means"),
        ("compact", "layers_K", np.asarray([], np.int64), "0 layers"),
        ("full", "layers_K", np.asarray([1, 2, 3, 4], np.int64), "4 layers"),
        ("first", "means_CF", np.full((1, 6), np.nan), "out of range"),
        ("first", "means_CF", np.full((1, 6), 1e200), "out of range"),
        ("first", "means_CF", np.zeros((1, 6), np.float32), "with their dtypes"),
        ("compact", "means_CF", np.zeros((1, 6)), "with their dtypes"),
        ("first", "covariance_U", np.zeros(20, np.int32), "wrong shapes"),
        ("full", "covariance_U", np.zeros(28, np.int32), "wrong shapes"),
        ("first", "distances_Q", np.zeros(3), "wrong shapes"),
        ("first", "more", np.zeros(3), "expected the arrays"),
        ("compact", "settings", np.array([-0.1, 0.0]), "reject -0.1"),
        ("compact", "settings", np.array([np.nan, 0.0]), "reject nan"),
        ("compact", "settings", np.array([0.01, 2.0]), "weight of labels 2.0"),
        ("compact", "settings", np.zeros(3), "settings"),
        ("compact", "known", np.zeros(3), "moments"),
        ("with vectors", "features_power", np.asarray(999, np.int64), "out of range"),
        ("with vectors", "features_means_CF", np.zeros((2, 5), np.int8), "wrong shapes"),
        ("with vectors", "features_known", np.array([0.0, np.inf, 1.0]), "moments"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(form: str, name: str, value: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TaskSums.from_arrays({**FORMS[form].to_arrays(), name: value})


@pytest.mark.parametrize("split", ["train_ND", "validation_ND"])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_vectors_that_are_not_finite_are_left_out(split: str, value: float) -> None:
    _, vectors, validation = _with_vectors(1)
    broken = getattr(vectors, split).copy()
    broken[-1, 2] = value
    sums = sums_of(read_of(_states(1), validation), vectors=replace(vectors, **{split: broken}))
    assert sums.features is None
    assert np.isfinite(sums.shares(validation, None)).all()


@pytest.mark.parametrize("scale", [1e-15, 1e-3, 1e6, 1e20, 1e38])
def test_the_size_of_vectors_does_not_matter(scale: float) -> None:
    _, vectors, validation = _with_vectors(1)
    expected = sums_of(read_of(_states(1), validation), vectors=vectors)
    scale = 2.0 ** round(float(np.log2(scale)))
    large = VectorsRead(
        train=vectors.train, train_ND=vectors.train_ND * scale, validation_ND=vectors.validation_ND * scale
    )
    sums = TaskSums.from_arrays(sums_of(read_of(_states(1), validation), vectors=large).to_arrays())
    own = sums.shares(validation, large.validation_ND)[0]
    np.testing.assert_allclose(own, expected.shares(validation, vectors.validation_ND)[0], atol=1e-9)


def test_a_row_that_is_the_same_as_all_rows_is_one_of_them_in_any_batch() -> None:
    same, vector = np.tile(_states(1)[:1], (1000, 1)), np.ones((1000, 4))
    vectors = VectorsRead(train=np.arange(1000), train_ND=vector, validation_ND=vector)
    sums = sums_of(read_of(same, same), vectors=vectors)
    rounding = 1 + 1e-7 * np.random.default_rng(0).normal(size=(20, 1))
    assert sums.shares(same[:20] * rounding, vector[:20] * rounding)[0].min() > 0.1
    assert sums.shares(_states(2)[:20], -vector[:20])[0].max() < 0.01
