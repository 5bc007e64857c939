"""An experiment done once, on validation rows: does the confidence of a task's own bank help to find the task?

A row's three most probable tasks are scored by ``log p(task) + w log max p(label | the task's bank)``. The weight w is chosen
on one half of the validation rows and evaluated on the other, and vice versa. Banks and thresholds were chosen on these rows
too, so the gain is probably overestimated. A bank is not queried on rows for which its task cannot be chosen whatever the
bank predicts: the probability of its most probable label is at least one over the number of labels.

Shape suffixes: N rows, T tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from continual_petl.router.discriminant import probabilities
from experiments.routing.read import Array, TaskRows
from experiments.routing.routes import router_of, scores_of

CANDIDATES = 3
WEIGHTS = tuple(round(0.1 * step, 1) for step in range(21))
TINY = 1e-12


def to_ask(tasks: Sequence[TaskRows], task: TaskRows, num_labels: int) -> dict[str, NDArray[np.bool_]]:
    """For each bank, return a mask ``(N,)`` of the task's validation rows on which the bank must be queried.

    Args:
        tasks: the tasks that the router knows.
        task: the task that the rows belong to.
        num_labels: the largest number of labels of any bank.
    """
    asked_NT = _candidates(_log_probabilities(tasks, task), num_labels)
    return {other.name: asked_NT[:, number] for number, other in enumerate(tasks)}


def joined_with_banks(tasks: Sequence[TaskRows], by_label: bool) -> dict[str, Any]:
    """Return the routing and accuracy of validation rows, without and with the banks' confidence.

    Args:
        tasks: tasks whose validation rows every bank has predicted, as far as needed.
        by_label: whether a row counts as correct if its label is correct, whatever its task.
    """
    own, right = [], []
    for number, task in enumerate(tasks):
        rows = task.splits["validation"]
        best_NT = np.stack([np.log(rows.answers[other.name].best_N + TINY) for other in tasks], axis=1)
        true_NT = np.array(
            [
                [rows.answers[other.name].values[row] == label for other in tasks]
                for row, label in enumerate(rows.labels)
            ]
        )
        log_NT = _log_probabilities(tasks, task)
        chosen_WN = np.stack([_chosen(log_NT, best_NT, weight) for weight in WEIGHTS])
        own.append(chosen_WN == number)
        right.append(true_NT[np.arange(len(true_NT)), chosen_WN] & (by_label | own[-1]))
    return {"routing": _gain(own), "accuracy": _gain(right), "weights": list(WEIGHTS), "candidates": CANDIDATES}


def _log_probabilities(tasks: Sequence[TaskRows], task: TaskRows) -> Array:
    states_NF = task.splits["validation"].states_NF
    log_NT: Array = np.log(probabilities(scores_of(router_of(tasks), tasks, states_NF, task.pair)) + TINY)
    return log_NT


def _candidates(log_NT: Array, num_labels: int) -> NDArray[np.bool_]:
    asked_NT: NDArray[np.bool_] = log_NT >= log_NT.max(1, keepdims=True) - WEIGHTS[-1] * np.log(num_labels)
    beyond_NT = np.argsort(-log_NT, axis=1, kind="stable")[:, CANDIDATES:]
    np.put_along_axis(asked_NT, beyond_NT, False, axis=1)
    return asked_NT


def _chosen(log_NT: Array, best_NT: Array, weight: float) -> NDArray[np.intp]:
    joined_NT = np.where(np.isnan(best_NT), -np.inf, log_NT + weight * best_NT)
    beyond_NT = np.argsort(-log_NT, axis=1, kind="stable")[:, CANDIDATES:]
    np.put_along_axis(joined_NT, beyond_NT, -np.inf, axis=1)
    chosen_N: NDArray[np.intp] = joined_NT.argmax(1)
    return chosen_N


def _gain(hits: Sequence[NDArray[np.bool_]]) -> dict[str, Any]:
    """Return the share of hits over all rows, without banks and with them; ``hits`` are ``(weights, N)`` for each task."""
    hits_WN = np.concatenate(list(hits), axis=1)
    half_N = np.concatenate([np.random.default_rng(0).permutation(own.shape[1]) % 2 for own in hits]) == 0
    picked, judged = [], []
    for chosen_on_N in (half_N, ~half_N):
        picked.append(best := int(hits_WN[:, chosen_on_N].mean(1).argmax()))
        judged.append(hits_WN[best, ~chosen_on_N])
    return {
        "without": float(hits_WN[0].mean()),
        "with": float(np.concatenate(judged).mean()),
        "weights": [WEIGHTS[best] for best in picked],
        "by_weight": [float(share) for share in hits_WN.mean(1)],
        "rows": hits_WN.shape[1],
    }
