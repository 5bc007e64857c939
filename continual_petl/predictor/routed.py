"""Predict rows whose task is not named: the router finds the task, and that task's bank predicts."""

from __future__ import annotations

from collections.abc import Sequence

from continual_petl.errors import InputError
from continual_petl.heads.words import Answer
from continual_petl.kind import kind_of
from continual_petl.predictor.given import Given
from continual_petl.predictor.one_or_many import Row
from continual_petl.predictor.predictor import Predictor
from continual_petl.predictor.routed_answer import RoutedAnswer as RoutedAnswer
from continual_petl.predictor.routed_answer import Unknown as Unknown
from continual_petl.predictor.states_below import chosen_states, kept_states
from continual_petl.predictor.task_finder import Route, task_finder
from continual_petl.store.model_cache import ModelCache


def predict_routed(
    models: ModelCache, rows: Row | Sequence[Row], *, batch_size: int = 32, unknown: Unknown = "reject"
) -> RoutedAnswer | list[RoutedAnswer]:
    """Predict one row or several, each with the bank of the task that the router finds for it.

    Args:
        models: the run's backbone and banks.
        rows: as in `Predictor.predict`; rows of different types may be mixed in a list.
        batch_size: rows per batch.
        unknown: ``reject``: a row that does not resemble the rows of any task gets no prediction; ``nearest``: the bank of
            the most probable task predicts it.

    Raises:
        InputError: if the run cannot find tasks by itself, no task takes a row of this type, or ``unknown`` is not one of
            these two values.
        StoreError: if the stored routing statistics are not the certified ones.
    """
    if unknown not in ("reject", "nearest"):
        raise InputError(f"unknown: got {unknown!r}; allowed: 'reject' and 'nearest'")
    finder = task_finder(models)
    manifests = finder.manifests
    # If only some tasks take pairs, a tuple of two strings is a pair; two rows have to be given as a list.
    pairs = {task: manifest for task, manifest in manifests.items() if manifest.pair}
    given = Given(models.store, rows, lambda: pairs or manifests)
    images = any(kind_of(manifest).reads_images for manifest in manifests.values())
    listed, one = given.unnamed(images=images), given.one
    if not listed:
        return []
    kept = kept_states(models, finder, len(listed))
    routes = finder.routes(listed, finder.states(models, listed, batch_size, below=kept))
    tasks = {index: route.task for index, route in enumerate(routes) if unknown == "nearest" or not route.unknown}
    found = Predictor(models).resume(listed, tasks, chosen_states(finder, kept, tasks), batch_size=batch_size)
    routed = [routed_answer(route, found.get(index)) for index, route in enumerate(routes)]
    return routed[0] if one else routed


def routed_answer(route: Route, answer: Answer | None) -> RoutedAnswer:
    """Return the prediction of a row whose task was found; ``answer`` is None if the task is unknown."""
    shown = dict(route.probabilities)
    probability = shown[route.task]
    if answer is not None:
        del shown[route.task]
    return RoutedAnswer(
        task=None if answer is None else route.task,
        task_probability=probability,
        runners_up=shown,
        answer=answer,
        near_tie=route.near_tie,
    )
