"""How alike the training rows of a task are agrees with a plain loop, and tells templates from other rows."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray

from continual_petl.router.near_duplicates import MAX_ROWS, TOO_ALIKE, likeness, near_duplicate_notices

Array = NDArray[np.float64]


def plain(states: Array) -> float:
    """Return the median cosine to the nearest other row, one pair of rows after the other."""
    nearest = []
    for i, row in enumerate(states):
        cosines = []
        for j, other in enumerate(states):
            product = sum(a * b for a, b in zip(row, other, strict=True))
            scale = math.sqrt(sum(a * a for a in row) * sum(b * b for b in other))
            if i != j:
                cosines.append(product / scale if scale else 0.0)
        nearest.append(max(cosines))
    nearest.sort()
    return (nearest[(len(nearest) - 1) // 2] + nearest[len(nearest) // 2]) / 2


def rows(seed: int, number: int, *, layers: int = 3, width: int = 4) -> Array:
    """Return random features: of each layer, a vector of length one."""
    drawn = np.random.default_rng(seed).normal(size=(number, layers, width))
    scaled: Array = drawn / np.linalg.norm(drawn, axis=2, keepdims=True)
    return scaled.reshape(number, layers * width)


@pytest.mark.parametrize("number", [2, 3, 10, 41])
@pytest.mark.parametrize("layers", [1, 3])
def test_it_is_the_median_cosine_to_the_nearest_other_row(number: int, layers: int) -> None:
    states = rows(number, number, layers=layers)
    assert likeness(states) == pytest.approx(plain(states), abs=1e-12)  # products are summed in another order
    # The parts of each layer have length one, so the cosine is the product divided by the number of layers.
    products = states @ states.T / layers - 9 * np.eye(number)
    assert likeness(states) == pytest.approx(np.median(products.max(1)), abs=1e-12)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (np.tile(rows(1, 1), (6, 1)), 1.0),
        (np.repeat(rows(1, 5), 2, axis=0), 1.0),
        (rows(1, 1), 0.0),
        (rows(1, 0), 0.0),
        (np.array([[1.0, 0.0], [-1.0, 0.0]]), -1.0),
        (np.zeros((4, 6)), 0.0),
        (np.concatenate([np.zeros((1, 12)), np.tile(rows(1, 1), (3, 1))]), 1.0),
    ],
    ids=["copies", "each twice", "one row", "no row", "opposite", "zeros", "a row of zeros"],
)
def test_special_rows_have_a_value(states: Array, expected: float) -> None:
    assert likeness(states) == pytest.approx(expected, abs=1e-12)


def test_many_rows_are_drawn_the_same_way_every_time_in_little_memory() -> None:
    states = np.repeat(rows(2, 10 * MAX_ROWS, width=8), 2, axis=0)
    tracemalloc.start()
    first = likeness(states)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert first == likeness(states)
    assert peak < 4 * 8 * MAX_ROWS**2
    # Templates in the order of their labels: a sample still has several rows of each.
    assert likeness(np.repeat(rows(3, 20), 500, axis=0)) == pytest.approx(1.0, abs=1e-12)


def test_only_rows_that_are_too_alike_give_a_notice() -> None:
    natural, templates = (
        rows(4, 300, width=100),
        rows(5, 3, width=100)[np.arange(300) % 3] + 0.01 * rows(6, 300, width=100),
    )
    assert likeness(natural) < TOO_ALIKE < likeness(templates)
    assert near_duplicate_notices("a", likeness(natural)) == near_duplicate_notices("a", TOO_ALIKE) == []
    (notice,) = near_duplicate_notices("a", 0.934)
    assert notice.startswith("task 'a': half of the training rows are near-duplicates of another one")
    for words in (
        "cosine of 0.93 or more",
        "called unknown",
        "`--reject 0.01`",
        "`routing: {reject: 0.01}`",
        "more varied",
    ):
        assert words in notice
