"""Predicting the task or the class: the router compared with other classifiers on the same states, tuned on validation rows.

Shape suffixes: N rows, F features per row, C classes or tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments.routing.classifiers import CLASSIFIERS, Setting
from experiments.routing.read import Array, Numbers, joined, joined_labels
from experiments.routing.routes import Routes

Tell = Callable[[str], None]
SLOW_TO_SEARCH = ("klda",)
"""Classifiers that get half as many random features, because a covariance is inverted for every setting."""


def which_task(routes: Routes, size: int, tell: Tell) -> dict[str, Any]:
    """Compare classifiers that predict a row's task, among the tasks that take rows of its type.

    Args:
        routes: the router; the others read the same layers.
        size: maximum number of random features.
        tell: called with a line about each classifier.

    Returns:
        For each method: ``test`` and ``validation``, the share of rows assigned to their task as a mean over tasks;
        ``setting``.
    """
    tasks = routes.tasks
    train_NF, label_N = joined(tasks, "train", routes.layers)
    parts = [joined(tasks, split, routes.layers) for split in ("validation", "test")]
    pair_C = np.array([task.pair for task in tasks])
    allowed = [pair_C[None, :] == pair_C[own_N][:, None] for _, own_N in parts]

    def share(scores_NC: Array, part: int) -> float:
        chosen_N = np.where(allowed[part], scores_NC, -np.inf).argmax(1)
        return _mean_share(chosen_N == parts[part][1], parts[part][1])

    return _compared(train_NF, label_N, [rows for rows, _ in parts], share, size, tell)


def which_class(routes: Routes, size: int, tell: Tell) -> dict[str, Any]:
    """Compare classifiers that predict a row's class, among the classes of all tasks, without any bank.

    Returns:
        The same as `which_task`, but with shares of all rows; ``frozen`` is the router's discriminant over label means.
    """
    tasks = routes.tasks
    names = [label for task in tasks for label in task.labels]
    numbers = {name: number for number, name in enumerate(names)}
    train_NF, _ = joined(tasks, "train", routes.layers)
    label_N = joined_labels(tasks, "train", numbers)
    states = [joined(tasks, split, routes.layers)[0] for split in ("validation", "test")]
    labels = [joined_labels(tasks, split, numbers) for split in ("validation", "test")]

    def share(scores_NC: Array, part: int) -> float:
        return float((scores_NC.argmax(1) == labels[part]).mean())

    found = _compared(train_NF, label_N, states, share, size, tell)
    if all(len(routes.sums[task.name].counts_C) == len(task.labels) for task in tasks):
        own = [
            np.concatenate([routes.router.label_scores(rows_NF, task.name) for task in tasks], axis=1)
            for rows_NF in states
        ]
        found["frozen"] = {"validation": share(own[0], 0), "test": share(own[1], 1), "setting": {}}
    return found


def _compared(
    train_NF: Array,
    label_N: Numbers,
    parts: Sequence[Array],
    share: Callable[[Array, int], float],
    size: int,
    tell: Tell,
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, classifier in CLASSIFIERS.items():
        began, tried = time.perf_counter(), list[tuple[Setting, float]]()
        best: dict[str, Any] = {"validation": -1.0}
        own_size = size // 2 if name in SLOW_TO_SEARCH else size
        for setting, scores in classifier(train_NF, label_N, parts, own_size):
            tried.append((setting, validation := share(scores[0], 0)))
            if validation > best["validation"]:
                best = {"validation": validation, "test": share(scores[1], 1), "setting": setting}
        if name in ("ranpac", "klda"):
            best["setting"] = {"features": own_size, **best["setting"]}
        found[name] = best | {"tried": [{**setting, "validation": value} for setting, value in tried]}
        tell(f"{name}: {best['test']:.4f}, {time.perf_counter() - began:.0f} s")
    return found


def _mean_share(right_N: Any, task_N: Numbers) -> float:
    return float(np.mean([right_N[task_N == task].mean() for task in np.unique(task_N)]))
