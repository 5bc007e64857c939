"""Distances between tasks agree with a plain reimplementation, and are zero from a task to itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_petl.router.discriminant import shrinkage
from continual_petl.router.similarity import distances
from continual_petl.router.sums import RowsRead, TaskSums, shrunk, sums_of
from continual_petl.router.totals import Totals


def tasks_of(seed: int, num_tasks: int, width: int, num_labels: int) -> dict[str, TaskSums]:
    generator = np.random.default_rng(seed)
    found = {}
    for number in range(num_tasks):
        labels = np.repeat(np.arange(num_labels), 12)
        states = generator.normal(size=(num_labels, width))[labels] + 0.1 * generator.normal(size=(len(labels), width))
        states /= np.linalg.norm(states, axis=1, keepdims=True)
        rows = RowsRead(layers=(1,), train_NF=states, validation_NF=states[:3], labels_N=labels)
        found[f"task-{number}"] = sums_of(rows, "full" if number % 2 else "compact")
    return found


def totals_of(tasks: dict[str, TaskSums]) -> Totals:
    totals = Totals()
    for task, sums in tasks.items():
        totals.add(task, task, sums)
    return totals


@given(st.integers(0, 2**16), st.integers(1, 5), st.integers(2, 6), st.integers(1, 3))
@settings(deadline=None, max_examples=25)
def test_distances_are_those_of_a_plain_loop(seed: int, num_tasks: int, width: int, num_labels: int) -> None:
    known, new = tasks_of(seed, num_tasks, width, num_labels), tasks_of(seed + 1, 1, width, num_labels + 1)["task-0"]
    found = distances(totals_of(known), new.counts_C, new.means_CF)
    covariances = []
    for sums in known.values():
        upper = sums.covariance.upper_U / 2**30
        square = np.zeros((width, width))
        square[np.triu_indices(width)] = upper
        covariances.append(sums.count * (square + np.triu(square, 1).T))
    rows = sum(sums.count for sums in known.values())
    inverse = np.linalg.inv(shrunk(np.sum(covariances, axis=0) / rows, shrinkage(rows, width)))
    expected = {}
    for task, sums in known.items():
        nearest = [
            min(np.sqrt((mean - other) @ inverse @ (mean - other)) for other in sums.means_CF) for mean in new.means_CF
        ]
        expected[task] = float(np.average(nearest, weights=new.counts_C))
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert list(found.values()) == sorted(found.values())


def test_task_is_at_distance_zero_from_itself_and_nearest() -> None:
    known = tasks_of(3, 4, 6, 2)
    own = known["task-2"]
    found = distances(totals_of(known), own.counts_C, own.means_CF)
    assert next(iter(found)) == "task-2"
    assert found["task-2"] == pytest.approx(0.0, abs=1e-5)


def test_nothing_is_near_without_routing_statistics() -> None:
    own = tasks_of(0, 1, 4, 2)["task-0"]
    assert distances(Totals(), own.counts_C, own.means_CF) == {}
