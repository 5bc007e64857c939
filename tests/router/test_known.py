"""The share of a task's own rows that are as far away as a row is what scipy and plain counting give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import gamma, skewnorm

from continual_petl.router.known import LEAST_SKEWNESS, MOST_SKEWNESS, QUANTILES, Moments, Quantiles


@given(
    st.floats(-5, 5),
    st.floats(0.01, 10),
    st.floats(LEAST_SKEWNESS, MOST_SKEWNESS),
    st.lists(st.floats(-50, 50), min_size=1),
)
@settings(deadline=None, max_examples=60)
def test_share_is_the_tail_of_a_gamma_distribution(
    mean: float, deviation: float, skewness: float, values: list[float]
) -> None:
    shape = 4 / skewness**2
    # scipy's own parametrisation by shape, location and scale has these three moments.
    scale = deviation * skewness / 2
    law = gamma(shape, loc=mean - shape * scale, scale=scale)
    assert np.allclose(law.stats("mvs"), (mean, deviation**2, skewness), rtol=1e-6, atol=1e-8)
    found = Moments(mean=mean, deviation=deviation, skewness=skewness).share(np.array(values))
    np.testing.assert_allclose(found, law.sf(values), rtol=1e-6, atol=1e-9)


def test_moments_of_many_rows_are_their_own() -> None:
    values = skewnorm(4, loc=3, scale=2).rvs(20_000, random_state=0)
    found = Moments.of(values)
    assert found.mean == pytest.approx(values.mean())
    assert found.deviation == pytest.approx(values.std(), rel=1e-3)
    assert found.skewness == pytest.approx(((values - values.mean()) ** 3).mean() / values.std() ** 3, rel=1e-2)
    # Fresh rows of the same distribution are below a share as often as the share says.
    fresh = skewnorm(4, loc=3, scale=2).rvs(20_000, random_state=1)
    for share in (0.01, 0.05, 0.5):
        assert (found.share(fresh) < share).mean() == pytest.approx(share, rel=0.15)


@pytest.mark.parametrize("values", [[4.0], [4.0, 4.0, 4.0], [0.0]])
def test_a_few_rows_that_are_alike_do_not_make_all_others_foreign(values: list[float]) -> None:
    found = Moments.of(np.array(values))
    share = found.share(np.array([values[0], values[0] * 1.1, values[0] * 3 + 1]))
    assert np.isfinite(share).all()
    assert share[0] > 0.3
    assert values == [0.0] or share[1] > 0.05
    assert share[2] < 0.01


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.floats(0, 120))
@settings(deadline=None, max_examples=100)
def test_share_by_quantiles_is_the_share_of_rows_that_are_as_far(rows: list[float], value: float) -> None:
    distances_Q = np.quantile(rows, QUANTILES)
    (found,) = Quantiles(distances_Q=distances_Q).share(np.array([value])).tolist()
    levels = QUANTILES[distances_Q < value]
    beyond = QUANTILES[distances_Q >= value]
    assert 0 <= found <= 1
    assert found <= 1 - (levels[-1] if len(levels) else 0) + 1e-12
    assert found >= 1 - (beyond[0] if len(beyond) else 1) - 1e-12
    if value > max(rows):
        assert found == 0
    if value <= min(rows):
        assert found == 1


def test_the_usual_limit_is_the_quantile_at_which_earlier_releases_rejected() -> None:
    distances_Q = np.quantile(np.random.default_rng(0).exponential(size=500), QUANTILES)
    threshold = np.interp(0.99, QUANTILES, distances_Q)
    found = Quantiles(distances_Q=distances_Q).share(np.array([threshold * 0.999, threshold * 1.001]))
    assert (found < 0.01).tolist() == [False, True]


@pytest.mark.parametrize("values", [[0, 1], [0, 0, 1], [0, -1, 1], [0, np.nan, 1], [0, 1, 0.1], [0, 1, 3]])
def test_moments_that_no_rows_have_are_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"moments|skewness"):
        Moments.from_array(np.array(values))
