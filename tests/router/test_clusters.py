"""Compact covariances and means are what a plain computation of their rounding gives, and are added exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_petl.router.clusters import ONE, Array, Compact, Exact, Means, exact_covariance, shrunk, square
from tests.router.rows import states_of

SEEDS = st.integers(0, 2**16)


def dense(covariance: Compact | Exact) -> Array:
    """Return a covariance as a matrix, from its parts."""
    if isinstance(covariance, Exact):
        found = square(covariance.upper_U) / ONE
        return np.asarray(found, np.float64)
    factor = covariance.factor_FR.astype(np.float64) * 2.0 ** covariance.powers_R.astype(np.float64)
    return np.asarray(factor @ factor.T + np.diag(covariance.diagonal_F / 2**30), np.float64)


def centred(seed: int, num_rows: int, width: int) -> Array:
    states = states_of(seed, num_rows, width)
    found: Array = states - states.mean(0)
    return found


@given(SEEDS, st.integers(2, 40), st.integers(2, 12), st.integers(1, 8))
@settings(deadline=None, max_examples=60)
def test_compact_covariance_keeps_all_variances_and_its_total_is_exact(
    seed: int, num_rows: int, width: int, half: int
) -> None:
    rows = centred(seed, num_rows, width)
    compact = Compact.of(rows, 2 * half)
    # Where the rounded factor exceeds a variance, at most half a step of each column is too much.
    steps = 2.0 ** compact.powers_R.astype(float)
    allowed = 2 * (np.abs(dense(compact)).max() ** 0.5 * steps / 2 + steps**2 / 4).sum() + 1e-9
    np.testing.assert_allclose(np.diag(dense(compact)), (rows**2).mean(0), atol=allowed)
    whole = square(compact.upper_U)
    assert np.array_equal(whole / ONE, dense(compact)), "multiples of 2^-30, which float64 adds exactly"
    assert (np.linalg.eigvalsh(dense(compact)) > -1e-12).all()


def test_more_columns_keep_more_of_a_covariance() -> None:
    draw = np.random.default_rng(3)
    mixed, _ = np.linalg.qr(draw.normal(size=(200, 200)))
    rows = 0.3 * draw.normal(size=(800, 200)) * np.geomspace(1, 0.02, 200) @ mixed
    exact = rows.T @ rows / len(rows)
    error = [float(np.linalg.norm(dense(Compact.of(rows, columns)) - exact)) for columns in (2, 16, 100)]
    assert error[0] > error[1] > error[2]
    assert error[2] < 0.25 * np.linalg.norm(exact)


@given(SEEDS, st.sampled_from([0.05, 0.2, 0.6]), st.booleans())
@settings(deadline=None, max_examples=30)
def test_distances_are_those_of_the_dense_shrunk_covariance(seed: int, weight: float, full: bool) -> None:
    rows = centred(seed, 30, 9)
    covariance = exact_covariance(rows) if full else Compact.of(rows, 4)
    inverse = np.linalg.inv(shrunk(dense(covariance), weight))
    points, means = states_of(seed + 1, 5, 9), states_of(seed + 2, 3, 9)
    expected = [[(point - mean) @ inverse @ (point - mean) for mean in means] for point in points]
    np.testing.assert_allclose(covariance.distances(weight)(points, means), expected, rtol=1e-6, atol=1e-7)


def test_rows_that_are_all_the_same_have_finite_distances() -> None:
    same = np.zeros((6, 4))
    for covariance in (Compact.of(same, 2), exact_covariance(same)):
        assert np.isfinite(covariance.distances(0.2)(states_of(1, 3, 4), np.zeros((1, 4)))).all()


@given(SEEDS, st.integers(1, 9), st.floats(1e-6, 1e3))
@settings(deadline=None, max_examples=60)
def test_means_are_rounded_to_eight_bits(seed: int, num_means: int, scale: float) -> None:
    means = scale * np.random.default_rng(seed).normal(size=(num_means, 7))
    found = Means.of(means).values_CF
    apart = np.abs(means - means.mean(0).astype(np.float16)).max(1)
    # A power of two is at most twice as large as needed, and rounding loses at most half a step.
    assert (np.abs(found - means).max(1) <= apart / 127 + 1e-12).all()


def test_parts_are_stored_and_restored_exactly() -> None:
    compact, means = Compact.of(centred(1, 30, 9), 4), Means.of(states_of(2, 3, 9))
    assert compact.to_arrays()["factor_FR"].shape == (9, 2)
    again = Compact.from_arrays(compact.to_arrays())
    assert np.array_equal(again.factor_FR, compact.factor_FR)
    assert np.array_equal(again.upper_U, compact.upper_U)
    assert np.array_equal(Means.from_arrays(means.to_arrays()).values_CF, means.values_CF)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("factor_FR", np.zeros((9, 3), np.uint8), "wrong shapes"),
        ("factor_FR", np.zeros((9, 2), np.uint8), "out of range"),
        ("powers_R", np.full(4, 1, np.int8), "out of range"),
        ("powers_R", np.full(4, -16, np.int8), "out of range"),
        ("diagonal_F", np.zeros(9, np.int32), "not positive"),
        ("diagonal_F", np.ones(8, np.int32), "wrong shapes"),
        ("centre_F", np.full(9, np.inf, np.float16), "not finite"),
        ("powers_C", np.full(3, 61, np.int8), "out of range"),
        ("means_CF", np.zeros((3, 8), np.int8), "wrong shapes"),
    ],
)
def test_parts_that_do_not_fit_are_refused(name: str, value: np.ndarray, message: str) -> None:
    arrays = {**Compact.of(centred(1, 30, 9), 4).to_arrays(), **Means.of(states_of(2, 3, 9)).to_arrays()}
    read = Compact.from_arrays if name in ("factor_FR", "powers_R", "diagonal_F") else Means.from_arrays
    with pytest.raises(ValueError, match=message):
        read({**arrays, name: value})
