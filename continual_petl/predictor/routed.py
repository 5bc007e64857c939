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


_routers: WeakKeyDictionary[ModelCache, tuple[tuple[tuple[str, str], ...], Router]] = WeakKeyDictionary()
"""By run, the seals of the certificates that the router was made from."""


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
    _, manifests = _router_of(models)
    # Where some tasks take pairs and others do not, a tuple of two texts is a pair: two rows come in a list.
    pairs = {task: manifest for task, manifest in manifests.items() if manifest.pair}
    listed, one = as_rows(rows, lambda: pairs or manifests)
    if not listed:
        return []
    routes = find_tasks(models, listed, batch_size)
    chosen = [number for number, route in enumerate(routes) if unknown == "nearest" or not route.unknown]
    found: dict[int, Answer] = {}
    if chosen:
        answers = Predictor(models).predict(
            [listed[number] for number in chosen], [routes[number].task for number in chosen], batch_size=batch_size
        )
        found = dict(zip(chosen, answers, strict=True))
    routed = [route.answered(found.get(number)) for number, route in enumerate(routes)]
    return routed[0] if one else routed


def find_tasks(models: ModelCache, rows: Sequence[Row], batch_size: int) -> list[Route]:
    """Return the task of each row.

    Rows are encoded as each kind of task encodes them. A row is compared with the tasks that take rows of its type.

    Raises:
        InputError: if no learned task has sums for the router, or none takes a row of this type.
        StoreError: if stored sums are not the certified ones.
    """
    router, manifests = _router_of(models)
    scores_NT = np.full((len(rows), len(router.tasks)), -np.inf)
    states: dict[str, dict[int, Array]] = {}
    for group in _encoded_alike(manifests).values():
        numbers = [number for number, row in enumerate(rows) if accepts(row, manifests[group[0]])]
        if not numbers:
            continue
        request = check_request(rows, numbers, manifests[group[0]])
        backbone = models.backbone_of(group[0])
        backbone.model.train(False)
        found_NF = row_states(
            backbone, request.encoded(models), router.layers, models.pad_token_id, batch_size=batch_size
        )
        columns = [router.tasks.index(task) for task in group]
        scores_NT[np.ix_(numbers, columns)] = router.scores(found_NF)[:, columns]
        states |= {task: dict(zip(numbers, found_NF, strict=True)) for task in group}
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


def _router_of(models: ModelCache) -> tuple[Router, dict[str, Manifest]]:
    """Return the router over all learned tasks that have sums, and their manifests."""
    store = models.store
    check_can_route(store)
    manifests = {task: store.manifest(task) for task in store.tasks}
    key = tuple((task, manifests[task].seal) for task in sorted(manifests))
    if models not in _routers or _routers[models][0] != key:
        read = {task: store.router_sums(task) for task in manifests}
        sums = {}
        for task, stored in read.items():
            if stored is not None:
                arrays = {name: tensor.numpy() for name, tensor in as_tensors(stored).items()}
                try:
                    sums[task] = TaskSums.from_arrays(arrays)
                except ValueError as error:
                    raise StoreError(f"task {task!r}: router.safetensors does not fit this release: {error}") from error
        if len({own.layers for own in sums.values()}) > 1:
            read_by = ", ".join(f"{task} {list(own.layers)}" for task, own in list(sums.items())[:5])
            raise InputError(
                "task: none was named, and the tasks were learned with different settings of routing (layers read: "
                f"{read_by}): name the task, or learn them again with one setting."
            )
        _routers[models] = (key, Router(sums))
    router = _routers[models][1]
    return router, {task: manifests[task] for task in router.tasks}


def _encoded_alike(manifests: Mapping[str, Manifest]) -> dict[tuple[object, ...], list[str]]:
    """Return the tasks that encode a row in the same way, and in whose precision the backbone is the same."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for task, manifest in manifests.items():
        own = manifest.kind in GENERATIVE or manifest.kind in ("token-classification", "image-classification")
        precision = manifest.environment.precision
        key = (manifest.kind if own else "", manifest.pair, manifest.max_length, manifest.max_target_length, precision)
        groups.setdefault(key, []).append(task)
    return groups
