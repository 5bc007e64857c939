"""Which task, or which class: the discriminant of the router beside other classifiers, settings chosen on validation rows.

Shape suffixes: N rows, F numbers of a row, C classes or tasks, M means.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from continual_petl.router.discriminant import Router
from continual_petl.router.sums import TaskSums, sums_of
from experiments.routing.classifiers import CLASSIFIERS, Setting
from experiments.routing.read import Array, Numbers, TaskRows, joined, joined_labels
from experiments.routing.routes import one_mean, scores_of

Tell = Callable[[str], None]
SLOW_TO_SEARCH = ("klda",)
"""Its random features are halved: its covariance is inverted for every setting."""


def which_task(tasks: Sequence[TaskRows], size: int, tell: Tell) -> dict[str, Any]:
    """Compare on the question which task a row belongs to; of those that take rows of its type.

    Returns:
        By method: ``test`` and ``validation``, the mean over tasks of the share of rows that find their task; ``setting``.
    """
    train_NF, label_N = joined(tasks, "train")
    parts = [joined(tasks, split) for split in ("validation", "test")]
    pair_C = np.array([task.pair for task in tasks])
    allowed = [pair_C[None, :] == pair_C[own_N][:, None] for _, own_N in parts]

    def share(scores_NC: Array, part: int) -> float:
        chosen_N = np.where(allowed[part], scores_NC, -np.inf).argmax(1)
        return _mean_share(chosen_N == parts[part][1], parts[part][1])

    found = _others(train_NF, label_N, [rows for rows, _ in parts], share, size, tell)
    for name, sums in (("one_mean", [one_mean(task) for task in tasks]), ("label_means", [t.sums for t in tasks])):
        router = Router({task.name: own for task, own in zip(tasks, sums, strict=True)})
        shares = []
        for part, (states_NF, own_N) in enumerate(parts):
            scores_NC = np.concatenate(
                [scores_of(router, tasks, states_NF[own_N == number], pair) for number, pair in enumerate(pair_C)]
            )
            shares.append(share(scores_NC, part))
        found[name] = {"validation": shares[0], "test": shares[1], "setting": {}}
    return found


def which_class(tasks: Sequence[TaskRows], size: int, tell: Tell) -> dict[str, Any]:
    """Compare on the question which class a row belongs to, of all tasks; no bank takes part.

    Returns:
        As `which_task`, with the share of all rows. ``label_means`` is the discriminant of the router over the classes;
        ``class_covariances`` are not kept, so it has one covariance.
    """
    names = [label for task in tasks for label in dict.fromkeys(sorted(task.splits["train"].labels))]
    numbers = {name: number for number, name in enumerate(names)}
    train_NF, _ = joined(tasks, "train")
    label_N = joined_labels(tasks, "train", numbers)
    parts = [(joined(tasks, split)[0], joined_labels(tasks, split, numbers)) for split in ("validation", "test")]

    def share(scores_NC: Array, part: int) -> float:
        return float((scores_NC.argmax(1) == parts[part][1]).mean())

    found = _others(train_NF, label_N, [rows for rows, _ in parts], share, size, tell)
    router = Router({"all": _class_sums(tasks, train_NF, label_N)})
    shares = [share(_scores_of_means(router, rows), part) for part, (rows, _) in enumerate(parts)]
    found["label_means"] = {"validation": shares[0], "test": shares[1], "setting": {}}
    return found


def _class_sums(tasks: Sequence[TaskRows], train_NF: Array, label_N: Numbers) -> TaskSums:
    held_out_NF, _ = joined(tasks, "validation")
    return sums_of(train_NF, tasks[0].sums.layers, held_out_NF, label_N)


def _scores_of_means(router: Router, states_NF: Array) -> Array:
    """Return the log-density of each mean with the share of its rows, before a task's means are put together, ``(N, M)``."""
    scores_NM: Array = states_NF @ router._weight_FM + router._bias_M
    return scores_NM


def _others(
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
