"""Routing from stored statistics alone: after every task, in any order, without learning anything again.

Shape suffixes: N rows, T tasks, F features that the router reads per row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from continual_petl.report.routed_results import RoutedResults, routed_results
from continual_petl.router.discriminant import KNOWN, Router
from continual_petl.router.sums import QUANTILES, TaskSums, sums_of
from continual_petl.router.totals import Totals
from continual_petl.store.ledger.lines import RoutedCell
from experiments.routing.read import Array, Split, TaskRows


def router_of(tasks: Sequence[TaskRows]) -> Router:
    """Return the router over some tasks, in the given order."""
    return router_from({task.name: task.sums for task in tasks})


def router_from(sums: Mapping[str, TaskSums]) -> Router:
    """Return the router built from the statistics of some tasks."""
    totals = Totals()
    for name, own in sums.items():
        totals.add(name, name, own)
    return Router(totals, sums.__getitem__)


def one_mean(task: TaskRows) -> TaskSums:
    """Return the statistics of a task without its labels: one mean, and the covariance around it."""
    train, held_out = task.splits["train"], task.splits["validation"]
    return sums_of(train.states_NF, task.sums.layers, held_out.states_NF)


def scores_of(router: Router, tasks: Sequence[TaskRows], states_NF: Array, pair: bool) -> Array:
    """Return the score of each task, ``(N, T)`` in the order of ``tasks``; tasks that do not take such rows have -inf."""
    columns = [router.tasks.index(task.name) for task in tasks]
    scores_NT = router.scores(states_NF)[:, columns]
    scores_NT[:, [task.pair != pair for task in tasks]] = -np.inf
    return scores_NT


def nearness(tasks: Sequence[TaskRows], states_NF: Array, chosen_N: NDArray[np.intp]) -> Array:
    """Return each row's distance from its chosen task, divided by the task's threshold; above 1, the row is unknown."""
    found_N = np.zeros(len(states_NF))
    for number in np.unique(chosen_N):
        own = tasks[number].sums
        which_N = chosen_N == number
        threshold = np.interp(KNOWN, QUANTILES, own.distances_Q)
        found_N[which_N] = own.distances(states_NF[which_N], tasks[number].precision_FF) / threshold
    return found_N


def cells_after(
    tasks: Sequence[TaskRows], by_label: bool, split: str = "test", distances: bool = True
) -> dict[str, RoutedCell]:
    """Return how the rows of all given tasks are routed by a router that knows these tasks.

    Args:
        tasks: the tasks, in the order they were learned.
        by_label: whether a row counts as correct if its label is correct, whatever its task.
        split: name of the split to route.
        distances: whether to look for unknown rows, which takes longer than finding the tasks.
    """
    router, cells = router_of(tasks), {}
    for number, task in enumerate(tasks):
        rows = task.splits[split]
        chosen_N = scores_of(router, tasks, rows.states_NF, task.pair).argmax(1)
        known_N = np.ones(len(chosen_N), dtype=bool)
        if distances:
            known_N = nearness(tasks, rows.states_NF, chosen_N) <= 1
        own_N = chosen_N == number
        right_N = _right(rows, tasks, chosen_N, own_N, by_label) if task.graded else None
        counts = Counter(tasks[chosen].name for chosen in chosen_N)
        cells[task.name] = RoutedCell(
            task=task.name,
            index=number,
            split="test" if split == "test" else "validation",
            num_examples=len(rows.rows),
            chosen=dict(sorted(counts.items(), key=lambda each: (-each[1], each[0]))),
            unknown=int((~known_N).sum()),
            correct=None if right_N is None else int(right_N.sum()),
            correct_own=None if right_N is None else int((right_N & own_N).sum()),
            correct_known=None if right_N is None else int((right_N & known_N).sum()),
        )
    return cells


def _right(
    rows: Split, tasks: Sequence[TaskRows], chosen_N: NDArray[np.intp], own_N: NDArray[np.bool_], by_label: bool
) -> NDArray[np.bool_]:
    asked = [
        rows.answers[tasks[chosen].name] if by_label or own else None
        for chosen, own in zip(chosen_N, own_N, strict=True)
    ]
    return np.array(
        [
            found is not None and found.values[row] == label
            for row, (found, label) in enumerate(zip(asked, rows.labels, strict=True))
        ]
    )


def in_order(tasks: Sequence[TaskRows], by_label: bool, distances: bool = True) -> RoutedResults:
    """Return the routed result matrix for tasks that are learned in this order."""
    rows = [cells_after(tasks[:count], by_label, distances=distances) for count in range(1, len(tasks) + 1)]
    found = routed_results([task.name for task in tasks], rows)
    assert found is not None
    return found


def same_as_measured(found: RoutedResults, measured: RoutedResults) -> bool:
    """Return whether these numbers are the same as those that the run measured when it learned the tasks."""
    return found.tasks == measured.tasks[: len(found.tasks)] and all(
        _counts(row) == _counts(other) for row, other in zip(found.rows, measured.rows, strict=False)
    )


def _counts(row: Mapping[str, RoutedCell]) -> dict[str, Any]:
    return {task: cell.model_dump(exclude={"index"}) for task, cell in row.items()}


def equal_bit_for_bit(orders: Sequence[Sequence[TaskRows]]) -> bool:
    """Return whether the routers of the same tasks in several orders give all test rows the same scores, bit for bit."""
    routers = [router_of(tasks) for tasks in orders]
    states_NF = np.concatenate([task.splits["test"].states_NF for task in orders[0]])
    first_NT = routers[0].scores(states_NF)
    return all(router.tasks == routers[0].tasks for router in routers) and all(
        np.array_equal(router.scores(states_NF), first_NT) for router in routers[1:]
    )
