"""Answer rows whose task is not named: the router finds the task, and that task's bank answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np

from continual_petl.errors import InputError, StoreError
from continual_petl.heads.kinds import GENERATIVE
from continual_petl.heads.words import Answer
from continual_petl.predictor.one_or_many import Row, as_rows
from continual_petl.predictor.predictor import Predictor
from continual_petl.predictor.row_checks import accepts, check_request
from continual_petl.router.discriminant import Router, probabilities
from continual_petl.router.row_states import row_states
from continual_petl.router.sums import Array, TaskSums
from continual_petl.store.certificate.manifest import Manifest
from continual_petl.store.certificate.stored_tensor import as_tensors
from continual_petl.store.model_cache import ModelCache
from continual_petl.store.open_run import check_can_route

Unknown = Literal["reject", "nearest"]
"""What becomes of a row that is unlike the rows of every task: no answer, or that of the most probable task."""
NUM_RUNNERS_UP = 3
"""How many tasks are listed after the most probable one."""


@dataclass(frozen=True, kw_only=True)
class RoutedAnswer:
    """The answer to a row whose task was not named."""

    task: str | None
    """The task whose bank answered; None if the row is unlike the rows of every task, so that nothing is answered."""
    task_probability: float
    """Probability of the most probable task, among all tasks that take such rows."""
    runners_up: Mapping[str, float]
    """The next most probable tasks; for a row without an answer, the most probable one too."""
    answer: Answer | None
    """The answer; None if the task is unknown."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """The tasks of one row."""

    task: str
    unknown: bool
    """Whether the row is unlike the rows of this task, the most probable one."""
    probabilities: Mapping[str, float]
    """Of the most probable tasks, in descending order; ties in the order of names."""

    def answered(self, answer: Answer | None) -> RoutedAnswer:
        """Return the row's answer, with what the router found."""
        shown = dict(self.probabilities)
        probability = shown[self.task]
        if answer is not None:
            del shown[self.task]
        return RoutedAnswer(
            task=None if answer is None else self.task,
            task_probability=probability,
            runners_up=shown,
            answer=answer,
        )


@dataclass(frozen=True, kw_only=True)
class _Finder:
    """The router of a run, and how rows are encoded for it."""

    seals: tuple[tuple[str, str], ...]
    """Task and seal of every learned task when this was made."""
    router: Router
    groups: tuple[tuple[Manifest, tuple[str, ...]], ...]
    """Tasks that encode a row in the same way, with the manifest of one of them."""


_finders: WeakKeyDictionary[ModelCache, _Finder] = WeakKeyDictionary()


def predict_routed(
    models: ModelCache, rows: Row | Sequence[Row], *, batch_size: int = 32, unknown: Unknown = "reject"
) -> RoutedAnswer | list[RoutedAnswer]:
    """Answer one row, or several in their order, each with the bank of the task that the router finds for it.

    Args:
        models: of the run.
        rows: as in `Predictor.predict`; rows of different types may be mixed in a list.
        batch_size: rows per batch.
        unknown: ``reject``: a row that is unlike the rows of every task gets no answer; ``nearest``: the most probable task
            answers it.

    Raises:
        InputError: if no task can be found without its name, no task takes a row of this type, or ``unknown`` is neither.
        StoreError: if stored sums are not the certified ones.
    """
    if unknown not in ("reject", "nearest"):
        raise InputError(f"unknown: got {unknown!r}; allowed are 'reject' and 'nearest'")
    finder = _finder_of(models)
    manifests = {manifest.task: manifest for manifest, _ in finder.groups}
    # Where some tasks take pairs and others do not, a tuple of two texts is a pair: two rows come in a list.
    pairs = {task: manifest for task, manifest in manifests.items() if manifest.pair}
    listed, one = as_rows(rows, lambda: pairs or manifests)
    if not listed:
        return []
    routes = _find_tasks(finder, models, listed, batch_size)
    chosen = [number for number, route in enumerate(routes) if unknown == "nearest" or not route.unknown]
    found: dict[int, Answer] = {}
    if chosen:
        answers = Predictor(models).predict(
            [listed[number] for number in chosen], [routes[number].task for number in chosen], batch_size=batch_size
        )
        found = dict(zip(chosen, answers, strict=True))
    routed = [route.answered(found.get(number)) for number, route in enumerate(routes)]
    return routed[0] if one else routed


def _find_tasks(finder: _Finder, models: ModelCache, rows: Sequence[Row], batch_size: int) -> list[Route]:
    """Return the task of each row, among the tasks that take rows of its type; raises what `predict_routed` raises."""
    router = finder.router
    scores_NT = np.full((len(rows), len(router.tasks)), -np.inf)
    states: dict[str, dict[int, Array]] = {}
    for manifest, tasks in finder.groups:
        numbers = [number for number, row in enumerate(rows) if accepts(row, manifest)]
        if not numbers:
            continue
        request = check_request(rows, numbers, manifest)
        backbone = models.backbone_of(manifest.task)
        backbone.model.train(False)
        found_NF = row_states(
            backbone, request.encoded(models), router.layers, models.pad_token_id, batch_size=batch_size
        )
        columns = [router.tasks.index(task) for task in tasks]
        scores_NT[np.ix_(numbers, columns)] = router.scores(found_NF)[:, columns]
        states |= {task: dict(zip(numbers, found_NF, strict=True)) for task in tasks}
    for number in np.flatnonzero(np.isneginf(scores_NT).all(1)).tolist():
        raise InputError(
            f"row {number + 1} is {rows[number]!r:.80}, and no task that can be found without its name takes such rows: "
            "name the task"
        )
    return _routes(router, scores_NT, states)


def _routes(router: Router, scores_NT: Array, states: Mapping[str, Mapping[int, Array]]) -> list[Route]:
    probability_NT = probabilities(scores_NT)
    best_N = scores_NT.argmax(1)
    unknown_N = np.zeros(len(scores_NT), dtype=bool)
    for place in np.unique(best_N).tolist():
        task, numbers = router.tasks[place], np.flatnonzero(best_N == place).tolist()
        unknown_N[numbers] = router.is_unknown(np.stack([states[task][number] for number in numbers]), task)
    order_NT = np.argsort(-probability_NT, axis=1, kind="stable")[:, : NUM_RUNNERS_UP + 1]
    return [
        Route(
            task=router.tasks[int(best)],
            unknown=bool(unknown),
            probabilities={router.tasks[place]: float(own_T[place]) for place in order_T if own_T[place] > 0},
        )
        for best, unknown, own_T, order_T in zip(best_N, unknown_N, probability_NT, order_NT.tolist(), strict=True)
    ]


def _finder_of(models: ModelCache) -> _Finder:
    """Return the router over all learned tasks that have sums; it is made again only if a certificate has changed."""
    store = models.store
    seals = tuple(sorted((link.task, link.seal) for link in store.links()))
    if (finder := _finders.get(models)) is not None and finder.seals == seals:
        return finder
    check_can_route(store)
    sums: dict[str, TaskSums] = {}
    groups: dict[tuple[object, ...], tuple[Manifest, tuple[str, ...]]] = {}
    for task, _ in seals:
        if (stored := store.router_sums(task)) is None:
            continue
        try:
            sums[task] = TaskSums.from_arrays({name: tensor.numpy() for name, tensor in as_tensors(stored).items()})
        except ValueError as error:
            raise StoreError(f"task {task!r}: router.safetensors does not fit this release: {error}") from error
        manifest = store.manifest(task)
        first, tasks = groups.get(encoding := _encoding(manifest), (manifest, ()))
        groups[encoding] = (first, (*tasks, task))
    if len({own.layers for own in sums.values()}) > 1:
        read = ", ".join(f"{task} {list(own.layers)}" for task, own in list(sums.items())[:5])
        raise InputError(
            "task: none was named, and the tasks were learned with different settings of routing (layers read: "
            f"{read}): name the task, or learn them again with one setting."
        )
    finder = _finders[models] = _Finder(seals=seals, router=Router(sums), groups=tuple(groups.values()))
    return finder


def _encoding(manifest: Manifest) -> tuple[object, ...]:
    """Return a value that is the same for tasks that encode rows in the same way, on the backbone in the same precision."""
    own = manifest.kind in (*GENERATIVE, "token-classification", "image-classification")
    kind = manifest.kind if own else "text"
    return kind, manifest.pair, manifest.max_length, manifest.max_target_length, manifest.environment.precision
