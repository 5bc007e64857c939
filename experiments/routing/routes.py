"""Routing from statistics alone: after every task, in any order, without learning anything again.

Shape suffixes: N rows, T tasks, C labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from continual_petl.report.routed_results import RoutedResults, routed_results
from continual_petl.router.discriminant import Router
from continual_petl.router.totals import Totals
from continual_petl.store.ledger.lines import RoutedCell
from experiments.routing.read import Array, Rows, TaskRows
from experiments.routing.statistics import Sums


class Routes:
    """Where the rows of tasks go, and what they get there.

    Args:
        tasks: the tasks that the router knows, in the order they were learned.
        sums: their routing statistics.
        by_label: whether a row counts as correct if its label is correct, whatever its task (``protocol: class``).
    """

    def __init__(self, tasks: Sequence[TaskRows], sums: Sums, by_label: bool) -> None:
        totals = Totals()
        for task in tasks:
            totals.add(task.name, task.name, sums[task.name])
        self.tasks, self.sums, self.by_label = tasks, sums, by_label
        self.router = Router(totals, sums.__getitem__)
        self.layers = self.router.layers

    @cached_property
    def _columns(self) -> list[int]:
        return [self.router.tasks.index(task.name) for task in self.tasks]

    def scores(self, rows: Rows) -> Array:
        """Return the score of each task, ``(N, T)`` in the order of `tasks`; tasks that do not take such rows have -inf."""
        scores_NT = self.router.scores(rows.features(self.layers))[:, self._columns]
        scores_NT[:, [task.pair != rows.pair for task in self.tasks]] = -np.inf
        return scores_NT

    def chosen(self, rows: Rows) -> NDArray[np.intp]:
        """Return the index of each row's most probable task."""
        chosen_N: NDArray[np.intp] = self.scores(rows).argmax(1)
        return chosen_N

    def shares(self, rows: Rows, chosen_N: NDArray[np.intp]) -> Array:
        """Return the share of the chosen task's own rows that are at least as far away, as the product computes it."""
        found_N = np.zeros(len(chosen_N))
        for number in np.unique(chosen_N):
            which_N, name = np.flatnonzero(chosen_N == number), self.tasks[number].name
            own = self.sums[name]
            vectors_ND = None if own.features is None else rows.vectors(name, which_N)
            found_N[which_N] = own.shares(rows.features(self.layers)[which_N], vectors_ND)[0]
        return found_N

    def limits(self, chosen_N: NDArray[np.intp]) -> Array:
        """Return the limit of the chosen tasks, below which a row is unknown."""
        return np.array([self.sums[self.tasks[number].name].reject for number in chosen_N])

    def right(
        self, task: TaskRows, rows: Rows, chosen_N: NDArray[np.intp], weight: float | None = None
    ) -> NDArray[np.bool_]:
        """Return which rows of a task get the correct label.

        Args:
            task: the task that the rows belong to.
            rows: its rows.
            chosen_N: the task that predicts each of them.
            weight: by how much the frozen states count beside the bank; None for what the statistics say.
        """
        right_N = np.zeros(len(chosen_N), dtype=bool)
        for number in np.unique(chosen_N):
            other, which_N = self.tasks[number], np.flatnonzero(chosen_N == number)
            if not other.labels or not (self.by_label or other is task):
                continue
            own = self.sums[other.name]
            log_NC = rows.log_shares(other.name, which_N)
            share = own.label_weight if weight is None else weight
            if share and len(own.counts_C) == len(other.labels):
                log_NC = log_NC + share * self.router.label_scores(rows.features(self.layers)[which_N], other.name)
            right_N[which_N] = [
                other.labels[label] == rows.labels[row]
                for label, row in zip(log_NC.argmax(1).tolist(), which_N.tolist(), strict=True)
            ]
        return right_N

    def cells(self, split: str = "test", distances: bool = True) -> dict[str, RoutedCell]:
        """Return how the rows of all tasks are routed.

        Args:
            split: name of the split to route.
            distances: whether to look for unknown rows, which takes longer than finding the tasks.
        """
        return {task.name: self._cell(number, task, split, distances) for number, task in enumerate(self.tasks)}

    def _cell(self, number: int, task: TaskRows, split: str, distances: bool) -> RoutedCell:
        rows = task.splits[split]
        chosen_N = self.chosen(rows)
        known_N = np.ones(len(chosen_N), dtype=bool)
        if distances:
            known_N = self.shares(rows, chosen_N) >= self.limits(chosen_N)
        own_N = chosen_N == number
        right_N = self.right(task, rows, chosen_N) if task.labels else None
        counts = Counter(self.tasks[chosen].name for chosen in chosen_N)
        return RoutedCell(
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


def in_order(
    tasks: Sequence[TaskRows], sums: Sums, by_label: bool, distances: bool = False, split: str = "test"
) -> RoutedResults:
    """Return the routed result matrix for tasks that are learned in this order."""
    rows = [Routes(tasks[:count], sums, by_label).cells(split, distances) for count in range(1, len(tasks) + 1)]
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


def equal_bit_for_bit(orders: Sequence[Sequence[TaskRows]], sums: Sums) -> bool:
    """Return whether the routers of the same tasks in several orders give all test rows the same scores, bit for bit."""
    routers = [Routes(tasks, sums, by_label=False).router for tasks in orders]
    states_NF = np.concatenate([task.splits["test"].features(routers[0].layers) for task in orders[0]])
    first_NT = routers[0].scores(states_NF)
    return all(router.tasks == routers[0].tasks for router in routers) and all(
        np.array_equal(router.scores(states_NF), first_NT) for router in routers[1:]
    )
