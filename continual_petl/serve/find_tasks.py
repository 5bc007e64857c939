"""Finds the tasks of rows without a task name; their banks can then resume from the same pass of the backbone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from continual_petl.errors import InputError
from continual_petl.kind_registry import kind_of
from continual_petl.predictor.records import Row
from continual_petl.predictor.states_below import chosen_states, kept_states
from continual_petl.predictor.task_finder import Encoding, Route, TaskFinder, task_finder
from continual_petl.router.row_states import StatesBelow
from continual_petl.serve.problems import Problem
from continual_petl.serve.accepted_rows import IMAGE, in_words
from continual_petl.store.model_cache import ModelCache

_log = logging.getLogger("continual_petl.serve")


@dataclass(frozen=True, kw_only=True)
class FoundTasks:
    """The tasks that were found for some rows of a batch."""

    routes: Mapping[int, Route]
    """By row index."""
    finder: TaskFinder | None = None
    kept: Mapping[Encoding, StatesBelow] | None = None
    """For each way of encoding these rows, their states below all banks, by position in ``routes``."""

    def states(self, chosen: Mapping[int, str]) -> StatesBelow | None:
        """Return the states from which the banks of these rows resume, by row index; None if banks start at the embeddings.

        Args:
            chosen: the task of each row, by row index.
        """
        positions = {index: position for position, index in enumerate(self.routes)}
        if self.finder is None or not chosen:
            return None
        below = chosen_states(self.finder, self.kept, {positions[index]: task for index, task in chosen.items()})
        if below is None:
            return None
        return StatesBelow(layer=below.layer, states={index: below.states[positions[index]] for index in chosen})


def find_tasks(
    models: ModelCache,
    rows: Sequence[Row],
    tasks: Sequence[str | None],
    batch_rows: int,
    load: Callable[[Iterable[str]], None],
) -> FoundTasks:
    """Find the tasks of the rows whose task is None.

    Args:
        models: the run's backbone and banks.
        rows: the rows of a batch.
        tasks: the task of each row, or None.
        batch_rows: rows per pass.
        load: loads the backbone in every precision that the given tasks need.

    Raises:
        Problem: if the run has no router.
        InputError: if no task takes a row of this type.
    """
    unnamed = [index for index, task in enumerate(tasks) if task is None]
    if not unnamed:
        return FoundTasks(routes={})
    own = [rows[index] for index in unnamed]
    try:
        finder = task_finder(models)
    except InputError as error:
        _log.error("tasks cannot be found: %s", error)
        raise Problem(
            422, "no_routing", "this run cannot find the task of a row: name the task of every row"
        ) from error
    load(finder.certificates)
    if any(kind_of(certificate).reads_images for certificate in finder.certificates.values()):
        for row in own:
            if not isinstance(row, dict):  # a text would be read as a path on the server
                raise InputError(f"row 1: each row must be {in_words(IMAGE, named=False)}")
    kept = kept_states(models, finder, len(own))
    routes = finder.routes(own, finder.states(models, own, batch_rows, below=kept))
    return FoundTasks(routes=dict(zip(unnamed, routes, strict=True)), finder=finder, kept=kept)
