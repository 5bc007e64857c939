"""How well rows of unlearned tasks are distinguished from those of learned tasks: AUROC of distance over threshold.

A run without tasks on pairs of texts refuses pairs, so the main AUROC is over single texts. A second one adds the first texts
of pairs, which the run accepts.

Shape suffixes: N rows, P rows of learned tasks, Q rows of other tasks, F features that the router reads per row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.routing.read import Array, TaskRows
from experiments.routing.routes import nearness, router_of, scores_of


def auroc(known_P: Array, unknown_Q: Array) -> float:
    """Return the probability that an unknown row scores higher than a known one; ties count half.

    Example:
        >>> auroc(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
        0.875
    """
    ascending_P = np.sort(known_P)
    below_Q = np.searchsorted(ascending_P, unknown_Q, "left") + np.searchsorted(ascending_P, unknown_Q, "right")
    return float(below_Q.mean() / 2 / len(known_P))


def told_apart(
    tasks: Sequence[TaskRows], others: Sequence[TaskRows], first_texts: Mapping[str, Array]
) -> dict[str, Any]:
    """Return the AUROC that separates test rows of tasks unknown to a router from test rows of its own tasks.

    Args:
        tasks: the tasks that the router knows.
        others: tasks that it does not know; tasks on pairs are left out.
        first_texts: for the tasks on pairs, the states of the first texts of their test rows.
    """
    known_P = np.concatenate([_nearness(tasks, task.splits["test"].states_NF) for task in tasks])
    far = {task.name: _nearness(tasks, task.splits["test"].states_NF) for task in others if not task.pair}
    firsts = {name: _nearness(tasks, states_NF) for name, states_NF in first_texts.items()}
    return {
        "auroc": auroc(known_P, np.concatenate([*far.values()])),
        "auroc_with_first_texts": auroc(known_P, np.concatenate([*far.values(), *firsts.values()])),
        "by_task": {name: auroc(known_P, found) for name, found in (far | firsts).items()},
        "rejected": {name: float((found > 1).mean()) for name, found in (far | firsts).items()},
        "rejected_of_learned": float((known_P > 1).mean()),
        "first_texts": sorted(firsts),
    }


def _nearness(tasks: Sequence[TaskRows], states_NF: Array) -> Array:
    chosen_N = scores_of(router_of(tasks), tasks, states_NF, pair=False).argmax(1)
    return nearness(tasks, states_NF, chosen_N)
