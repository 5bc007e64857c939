"""Predicting the task or the class: the router's discriminant compared with other classifiers, tuned on validation rows.

Shape suffixes: N rows, F features per row, C classes or tasks, M means.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from continual_petl.router.discriminant import shrinkage as router_shrinkage
from continual_petl.router.sums import ONE, TaskSums, shrunk, square, sums_of
from experiments.routing.classifiers import CLASSIFIERS, Setting
from experiments.routing.read import Array, Numbers, TaskRows, joined, joined_labels
from experiments.routing.routes import one_mean, router_of

Tell = Callable[[str], None]
TRIED = (0.003, 0.01, 0.03, 0.1, 0.3)
"""Shrinkages that are tried for the discriminants in addition to the router's."""
SLOW_TO_SEARCH = ("klda",)
"""Classifiers that get half as many random features, because a covariance is inverted for every setting."""


def which_task(tasks: Sequence[TaskRows], size: int, tell: Tell, others: bool = True) -> dict[str, Any]:
    """Compare classifiers that predict a row's task, among the tasks that take rows of its type.

    Args:
        tasks: the tasks.
        size: maximum number of random features.
        tell: called with a line about each classifier.
        others: whether to include classifiers other than discriminants.

    Returns:
        For each method: ``test`` and ``validation``, the share of rows assigned to their task as a mean over tasks;
        ``setting``.
    """
    train_NF, label_N = joined(tasks, "train")
    parts = [joined(tasks, split) for split in ("validation", "test")]
    pair_C = np.array([task.pair for task in tasks])
    allowed = [pair_C[None, :] == pair_C[own_N][:, None] for _, own_N in parts]

    def share(scores_NC: Array, part: int) -> float:
        chosen_N = np.where(allowed[part], scores_NC, -np.inf).argmax(1)
        return _mean_share(chosen_N == parts[part][1], parts[part][1])

    found = _others(train_NF, label_N, [rows for rows, _ in parts], share, size, tell) if others else {}
    own = router_shrinkage(len(train_NF), train_NF.shape[1])
    router = router_of(tasks)
    columns = [router.tasks.index(task.name) for task in tasks]
    whole = [router.scores(rows)[:, columns] for rows, _ in parts]
    found["router"] = {"validation": share(whole[0], 0), "test": share(whole[1], 1), "setting": {"shrinkage": own}}
    for name, sums in (("one_mean", [one_mean(task) for task in tasks]), ("label_means", [t.sums for t in tasks])):
        tried = []
        for shrinkage in (own, *TRIED):
            scores = [scores_of_tasks(sums, rows, shrinkage) for rows, _ in parts]
            tried.append((shrinkage, share(scores[0], 0), share(scores[1], 1)))
        found |= _discriminants(name, tried)
    return found


def which_class(tasks: Sequence[TaskRows], size: int, tell: Tell) -> dict[str, Any]:
    """Compare classifiers that predict a row's class, among the classes of all tasks, without any bank.

    Returns:
        The same as `which_task`, but with shares of all rows. ``label_means`` is one of the two discriminants that the router
        combines.
    """
    names = [label for task in tasks for label in dict.fromkeys(sorted(task.splits["train"].labels))]
    numbers = {name: number for number, name in enumerate(names)}
    train_NF, _ = joined(tasks, "train")
    label_N = joined_labels(tasks, "train", numbers)
    parts = [(joined(tasks, split)[0], joined_labels(tasks, split, numbers)) for split in ("validation", "test")]

    def share(scores_NC: Array, part: int) -> float:
        return float((scores_NC.argmax(1) == parts[part][1]).mean())

    found = _others(train_NF, label_N, [rows for rows, _ in parts], share, size, tell)
    held_out_NF, _ = joined(tasks, "validation")
    sums = [sums_of(train_NF, tasks[0].sums.layers, held_out_NF, label_N)]
    tried = []
    for shrinkage in (router_shrinkage(len(train_NF), train_NF.shape[1]), *TRIED):
        weight_FM, bias_M = _weights(sums, shrinkage)
        shares = [share(rows @ weight_FM + bias_M, part) for part, (rows, _) in enumerate(parts)]
        tried.append((shrinkage, shares[0], shares[1]))
    return found | _discriminants("label_means", tried)


def scores_of_tasks(sums: Sequence[TaskSums], states_NF: Array, shrinkage: float) -> Array:
    """Return the score of each task from its means alone, ``(N, T)``."""
    weight_FM, bias_M = _weights(sums, shrinkage)
    first_T = np.cumsum([0, *(len(own.counts_C) for own in sums[:-1])])
    scores_NT: Array = np.logaddexp.reduceat(states_NF @ weight_FM + bias_M, first_T, axis=1)
    return scores_NT


def _weights(sums: Sequence[TaskSums], shrinkage: float) -> tuple[Array, Array]:
    """Return the weights and bias of the linear function that belongs to each mean."""
    num_rows = sum(own.count for own in sums)
    total_U = np.sum([own.count * own.covariance_U.astype(np.int64) for own in sums], axis=0)
    means_MF = np.concatenate([own.means_CF for own in sums])
    weight_FM = np.linalg.solve(shrunk(square(total_U) / (ONE * num_rows), shrinkage), means_MF.T)
    shares_M = np.concatenate([own.counts_C / own.count for own in sums])
    return weight_FM, np.log(shares_M) - 0.5 * (means_MF.T * weight_FM).sum(0)


def _discriminants(name: str, tried: Sequence[tuple[float, float, float]]) -> dict[str, Any]:
    """Return the discriminant with the router's shrinkage, and with the one that is best on validation rows."""
    best = max(tried, key=lambda each: each[1])
    found = {
        key: {"validation": validation, "test": test, "setting": {"shrinkage": shrinkage}}
        for key, (shrinkage, validation, test) in ((name, tried[0]), (f"{name}_chosen", best))
    }
    found[f"{name}_chosen"]["tried"] = [
        {"shrinkage": shrinkage, "validation": validation} for shrinkage, validation, _ in tried
    ]
    return found


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
