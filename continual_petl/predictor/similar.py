"""Find the learned tasks whose rows are most similar to a task's rows, or to given rows, using stored statistics alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from continual_petl.errors import InputError, counted
from continual_petl.kind import kind_of
from continual_petl.predictor.given import Given
from continual_petl.predictor.one_or_many import Row
from continual_petl.predictor.row_checks import accepts
from continual_petl.predictor.task_finder import task_finder
from continual_petl.router.similarity import distances
from continual_petl.router.totals import read_sums
from continual_petl.store.model_cache import ModelCache


def similar_tasks(models: ModelCache, target: str | Sequence[Row]) -> dict[str, float]:
    """Return the distance of each learned task from the target, nearest first; see `continual_petl.router.similarity`.

    Args:
        models: the run's backbone and banks.
        target: a learned task, which is left out of the result, or rows of one type.

    Raises:
        InputError: if no task has routing statistics, the target is a task without them, or no task takes rows of this type.
    """
    finder = task_finder(models)
    if isinstance(target, str):
        sums = read_sums(models.store, target)
        if sums is None:
            raise InputError(
                f"task {target!r} was learned with routing: off and stored no routing statistics: give a file with some "
                "of its rows"
            )
        found = distances(finder.totals, sums.counts_C, sums.means_CF)
        return {task: distance for task, distance in found.items() if task != target}
    images = any(kind_of(manifest).reads_images for manifest in finder.manifests.values())
    rows = Given(models.store, target, lambda: finder.manifests).unnamed(images=images)
    group = next((k for k, (m, _) in finder.groups.items() if all(accepts(row, m) for row in rows)), None)
    if not rows or group is None:
        raise InputError(
            f"rows: got {counted(len(rows), 'row')}; give at least one, and only rows of a type that one of the learned "
            "tasks takes (texts, pairs of texts, lists of words, or images)"
        )
    states_NF = np.stack(list(finder.states(models, rows)[group].values()))
    return distances(finder.totals, np.array([len(states_NF)]), states_NF.mean(0, keepdims=True))
