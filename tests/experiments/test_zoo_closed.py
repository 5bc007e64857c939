"""Classifiers in closed form, held against direct computations in float64 and against scikit-learn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.special import erf
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.metrics.pairwise import rbf_kernel

from experiments.routing.read import Array, Numbers
from experiments.zoo.closed import (
    KLDA,
    AnaCP,
    ClosedForm,
    FeCAM,
    NearestMean,
    RanPAC,
    StreamingLDA,
    predicted,
    triangle,
)

WIDTH = 6


def rows(seed: int = 0, count: int = 240, labels: int = 5) -> tuple[Array, Numbers]:
    """Return rows of correlated states around a mean for each label."""
    drawn = np.random.default_rng(seed)
    label_N = drawn.integers(labels, size=count)
    mixed_FF = np.random.default_rng(1).standard_normal((WIDTH, WIDTH))
    means_CF = 2 * np.random.default_rng(2).standard_normal((labels, WIDTH))
    return means_CF[label_N] + drawn.standard_normal((count, WIDTH)) @ mixed_FF, label_N


def learned(classifier: ClosedForm, states_NF: Array, label_N: Numbers, tasks: list[list[int]]) -> ClosedForm:
    """Return the classifier after one task after another, each with all rows of its labels."""
    for own in tasks:
        of_task_N = np.isin(label_N, own)
        classifier.add(states_NF[of_task_N], label_N[of_task_N])
    return classifier


def by_label(classifier: ClosedForm, states_NF: Array) -> Array:
    """Return the scores with columns in the order of the labels."""
    return classifier.solve()(states_NF)[:, np.argsort(classifier.labels)]


MAKERS: dict[str, Callable[[], ClosedForm]] = {
    "ncm": lambda: NearestMean(WIDTH),
    "slda": lambda: StreamingLDA(WIDTH, shrinkage=1e-2),
    "ranpac": lambda: RanPAC(WIDTH, features=40),
    "klda": lambda: KLDA(WIDTH, features=40),
    "fecam": lambda: FeCAM(WIDTH),
    "anacp": lambda: AnaCP(WIDTH, features=30, heads=2, ridge=1.0, replayed=20),
}


@pytest.mark.parametrize("name", ["ncm", "klda", "fecam", "anacp"])
def test_labels_may_come_in_any_order_and_in_parts(name: str) -> None:
    states_NF, label_N = rows()
    one = learned(MAKERS[name](), states_NF, label_N, [[0, 1], [2], [3, 4]])
    other = learned(MAKERS[name](), states_NF, label_N, [[4], [3], [2, 1, 0]])
    parts = MAKERS[name]()
    for place in range(0, len(states_NF), 50):
        parts.add(states_NF[place : place + 50], label_N[place : place + 50])
    expected_NC = by_label(one, states_NF)
    for again in (other, parts):
        # Sums in another order are rounded differently.
        np.testing.assert_allclose(by_label(again, states_NF), expected_NC, rtol=1e-7, atol=1e-9)


def test_ranpac_depends_on_the_order_only_by_the_ridge_that_the_last_task_chooses() -> None:
    states_NF, label_N = rows()
    one = learned(MAKERS["ranpac"](), states_NF, label_N, [[0, 1], [2], [3, 4]])
    other = learned(MAKERS["ranpac"](), states_NF, label_N, [[3, 4], [2], [0, 1]])
    assert isinstance(one, RanPAC)
    assert isinstance(other, RanPAC)
    other.ridge = one.ridge = 0.1
    np.testing.assert_allclose(by_label(other, states_NF), by_label(one, states_NF), rtol=1e-7, atol=1e-9)


def test_nearest_mean_is_the_least_cosine_distance() -> None:
    states_NF, label_N = rows()
    classifier = learned(NearestMean(WIDTH), states_NF, label_N, [[0, 1, 2], [3, 4]])
    means_CF = np.stack([states_NF[label_N == label].mean(0) for label in range(5)])
    distance_NC = cdist(states_NF, means_CF, "cosine")
    np.testing.assert_allclose(by_label(classifier, states_NF), 1 - distance_NC, rtol=1e-9, atol=1e-12)
    assert np.array_equal(predicted(classifier.labels, classifier.solve()(states_NF)), distance_NC.argmin(1))


def test_streaming_lda_is_that_of_avalanche_row_after_row() -> None:
    """The loop is Algorithm 1 of Hayes and Kanan 2020, as in Avalanche's StreamingLDA: one row at a time, in float64."""
    states_NF, label_N = rows()
    classifier = learned(StreamingLDA(WIDTH, shrinkage=1e-2), states_NF, label_N, [[0, 3], [1, 2, 4]])
    means_CF, counts_C = np.zeros((5, WIDTH)), np.zeros(5)
    covariance_FF, num_updates = np.ones((WIDTH, WIDTH)), 0
    for own in ([0, 3], [1, 2, 4]):
        for state_F, label in zip(states_NF, label_N, strict=True):
            if label in own:
                from_mean_F = state_F - means_CF[label]
                delta_FF = np.outer(from_mean_F, from_mean_F) * num_updates / (num_updates + 1)
                covariance_FF = (num_updates * covariance_FF + delta_FF) / (num_updates + 1)
                means_CF[label] += from_mean_F / (counts_C[label] + 1)
                counts_C[label] += 1
                num_updates += 1
    order = np.argsort(classifier.labels)
    np.testing.assert_allclose(classifier.means_CM[order], means_CF, rtol=1e-12)
    np.testing.assert_allclose(classifier.covariance_MM, covariance_FF, rtol=1e-12, atol=1e-12)
    weight_FC = np.linalg.pinv(0.99 * covariance_FF + 0.01 * np.eye(WIDTH)) @ means_CF.T
    expected_NC = states_NF @ weight_FC - 0.5 * (means_CF.T * weight_FC).sum(0)
    np.testing.assert_allclose(by_label(classifier, states_NF), expected_NC, rtol=1e-9)


def test_klda_is_the_discriminant_of_scikit_learn_with_equal_priors() -> None:
    states_NF, label_N = rows()
    classifier = learned(KLDA(WIDTH, features=10, shrinkage=0.0), states_NF, label_N, [[0, 1], [2, 3, 4]])
    features_NM, shares_C = classifier.features(states_NF), np.bincount(label_N) / len(label_N)
    # Scikit-learn weights the covariances of labels by the priors.
    direct = LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True, priors=shares_C).fit(features_NM, label_N)
    np.testing.assert_allclose(classifier.covariance_MM, direct.covariance_, rtol=1e-9, atol=1e-12)
    expected_NC = direct.decision_function(features_NM) - np.log(shares_C)
    own_NC = by_label(classifier, states_NF)
    # All scores of a row may be shifted by the same value.
    np.testing.assert_allclose(own_NC - own_NC[:, :1], expected_NC - expected_NC[:, :1], rtol=1e-6, atol=1e-6)


def test_klda_features_approximate_the_kernel() -> None:
    states_NF, _ = rows(count=30)
    features_NM = KLDA(WIDTH, features=40_000, gamma=0.05).features(states_NF)
    # 20,000 directions: standard errors of about 0.005.
    np.testing.assert_allclose(features_NM @ features_NM.T, rbf_kernel(states_NF, gamma=0.05), atol=0.03)


def test_ranpac_is_ridge_regression_with_the_ridge_of_the_least_error() -> None:
    states_NF, label_N = rows()
    classifier = RanPAC(WIDTH, features=40, seed=3)
    classifier.add(states_NF[:100], label_N[:100])
    classifier.add(states_NF[100:], label_N[100:])
    order = np.argsort(classifier.labels)
    hidden_NM = np.maximum(states_NF @ np.random.default_rng(3).standard_normal((WIDTH, 40)), 0)
    targets_NC = np.eye(5)[label_N]

    last_NM, last_NC = hidden_NM[100:], targets_NC[100:]
    drawn_N = np.random.default_rng(3).permutation(140)
    fitted, held_out = drawn_N[:112], drawn_N[112:]
    errors = []
    for ridge in 10.0 ** np.arange(-8, 9):
        model = Ridge(alpha=ridge, fit_intercept=False, solver="svd").fit(last_NM[fitted], last_NC[fitted])
        errors.append(((model.predict(last_NM[held_out]) - last_NC[held_out]) ** 2).mean())
    assert classifier.ridge == 10.0 ** (int(np.argmin(errors)) - 8)

    model = Ridge(alpha=classifier.ridge, fit_intercept=False, solver="svd").fit(hidden_NM, targets_NC)
    np.testing.assert_allclose(classifier.solve()(states_NF)[:, order], model.predict(hidden_NM), rtol=1e-6, atol=1e-8)


def test_fecam_is_the_distance_with_each_labels_own_normalised_covariance() -> None:
    states_NF, label_N = rows()
    classifier = learned(FeCAM(WIDTH, shrinkage=0.5), states_NF, label_N, [[1, 2], [0, 3, 4]])
    unit_NF = states_NF / np.linalg.norm(states_NF, axis=1, keepdims=True)
    columns = []
    for label in range(5):
        own_NF = unit_NF[label_N == label]
        covariance_FF = np.cov(own_NF.T)
        covariance_FF = covariance_FF + 0.5 * np.mean(np.diagonal(covariance_FF)) * np.eye(WIDTH)
        deviation_F = np.sqrt(np.diagonal(covariance_FF))
        inverse_FF = np.linalg.pinv(covariance_FF / np.outer(deviation_F, deviation_F))
        far_NF = unit_NF - own_NF.mean(0)
        columns.append(-np.einsum("nf,fg,ng->n", far_NF, inverse_FF, far_NF))
    # Inverse covariances are in float32.
    np.testing.assert_allclose(by_label(classifier, states_NF), np.stack(columns, 1), rtol=1e-5, atol=1e-6)


def test_anacp_is_two_ridge_regressions_with_targets_pushed_apart() -> None:
    states_NF, label_N = rows()
    classifier = AnaCP(WIDTH, features=30, heads=2, ridge=2.0, spread=1.0, replayed=20, seed=4)
    classifier.add(states_NF, label_N)
    drawn = np.random.default_rng(4)
    *heads, last_FM = [drawn.standard_normal((WIDTH, 30)) for _ in range(3)]
    unit_NF = states_NF / np.linalg.norm(states_NF, axis=1, keepdims=True)
    means_CF = np.stack([unit_NF[label_N == label].mean(0) for label in range(5)])
    far_NF = unit_NF - means_CF[label_N]
    covariance_FF = far_NF.T @ far_NF / len(far_NF) + 1e-4 * np.eye(WIDTH)

    values_F, vectors_FF = np.linalg.eigh(covariance_FF)
    half_FF = vectors_FF @ np.diag(np.sqrt(values_F)) @ vectors_FF.T
    whitened_CF = means_CF @ np.linalg.inv(half_FF)
    left_CC, singular_C, right_CF = np.linalg.svd(whitened_CF, full_matrices=False)
    targets_CF = left_CC @ np.diag(singular_C + 1.0) @ right_CF @ half_FF
    targets_CF /= np.linalg.norm(targets_CF, axis=1, keepdims=True)

    def gelu(values_NM: Array) -> Array:
        found_NM: Array = 0.5 * values_NM * (1 + erf(values_NM / np.sqrt(2)))
        return found_NM

    def ridge(rows_NM: Array, targets_NC: Array) -> Array:
        model = Ridge(alpha=2.0, fit_intercept=False, solver="svd").fit(rows_NM, targets_NC)
        weight_MC: Array = model.coef_.T
        return weight_MC

    weights = [ridge(gelu(unit_NF @ head_FM), targets_CF[label_N]) for head_FM in heads]

    def projected(rows_NF: Array) -> Array:
        out = [gelu(rows_NF @ head_FM) @ weight_MF for head_FM, weight_MF in zip(heads, weights, strict=True)]
        return gelu(np.mean([each / np.linalg.norm(each, axis=1, keepdims=True) for each in out], axis=0) @ last_FM)

    order = np.argsort(classifier.labels)
    root_FF = np.linalg.cholesky(covariance_FF)
    replayed_NF = np.concatenate(
        [
            means_CF[label] + np.random.default_rng([4, label]).standard_normal((20, WIDTH)) @ root_FF.T
            for label in range(5)
        ]
    )
    last_MC = ridge(projected(replayed_NF), np.eye(5).repeat(20, axis=0))
    np.testing.assert_allclose(
        classifier.solve()(states_NF)[:, order], projected(unit_NF) @ last_MC, rtol=1e-6, atol=1e-8
    )


def test_spread_targets_are_less_similar_to_each_other() -> None:
    """The lemma of the paper: growing singular values make the sum of cosines between the whitened means smaller."""
    states_NF, label_N = rows()
    cosines = []
    for spread in (0.0, 1.0, 10.0):
        classifier = AnaCP(WIDTH, features=10, spread=spread)
        classifier.add(states_NF, label_N)
        values_F, vectors_FF = np.linalg.eigh(classifier.covariance_MM)
        whitened_CF = classifier.means_CM @ vectors_FF / np.sqrt(values_F)
        left_CC, singular_C, right_CF = np.linalg.svd(whitened_CF, full_matrices=False)
        spread_CF = left_CC * (singular_C + spread) @ right_CF
        unit_CF = spread_CF / np.linalg.norm(spread_CF, axis=1, keepdims=True)
        cosines.append(np.abs(unit_CF @ unit_CF.T - np.eye(5)).sum())
    assert cosines[0] > cosines[1] > cosines[2]


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_prediction_is_among_the_allowed_labels(name: str) -> None:
    states_NF, label_N = rows()
    classifier = learned(MAKERS[name](), states_NF, label_N, [[4, 1], [0]])
    scores_NC = classifier.solve()(states_NF)
    assert set(predicted(classifier.labels, scores_NC)) <= {0, 1, 4}
    own_N = np.isin(label_N, [0, 1, 4])
    assert (predicted(classifier.labels, scores_NC)[own_N] == label_N[own_N]).mean() > 0.7
    assert set(predicted(classifier.labels, scores_NC, {1, 4})) == {1, 4}
    assert set(predicted(classifier.labels, scores_NC, {2, 3})) == {-1}, "labels that were not seen"


def test_what_is_kept_is_counted() -> None:
    states_NF, label_N = rows()
    expected = {
        "ncm": 5 * 7,
        "slda": 5 * 7 + 21,
        "ranpac": 5 * 41 + triangle(40),
        "klda": 5 * 41 + triangle(40),
        "fecam": 5 * 7 + 5 * 21,
        "anacp": 5 * 7 + 21 + 2 * (5 * 31 + triangle(30)),
    }
    kept = {name: learned(make(), states_NF, label_N, [[0, 1, 2, 3, 4]]).kept for name, make in MAKERS.items()}
    assert kept == expected
