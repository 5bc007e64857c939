"""Find the task of each row that is given without a task name, with a router over the tasks of a run, and similar tasks.

The states below the banks are kept from the router's pass, so that the banks' own passes can start from them.

Shape suffixes: N rows, T tasks, F features that the router reads per row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from continual_petl.backbones.attention_switch import attending
from continual_petl.banks.attach import locked
from continual_petl.banks.config.spec import select_layers
from continual_petl.errors import InputError, StoreError, UnusableRowError, counted
from continual_petl.heads.predictions import ROUNDING as LABELS_ROUNDING
from continual_petl.heads.predictions import Prediction
from continual_petl.kind_registry import kind_of
from continual_petl.learner.respond import STATES
from continual_petl.predictor.given import Given
from continual_petl.predictor.records import Row, truncation_notice
from continual_petl.predictor.routes import NUM_RUNNERS_UP, ROUNDING, Known, Route, halving_refused, with_candidates
from continual_petl.predictor.row_checks import accepts, check_request, encoding_of
from continual_petl.router.discriminant import Router
from continual_petl.router.row_states import StatesBelow, row_states
from continual_petl.router.similarity import distances
from continual_petl.router.sums import Array
from continual_petl.router.totals import Totals, read_sums, totals_of
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.model_cache import ModelCache
from continual_petl.store.open_run import check_can_route
from continual_petl.streams.encoding.tokenise import TokenisedRows
from continual_petl.streams.schema.routing_spec import Reject

_log = logging.getLogger(__name__)
MAX_BYTES = 2**29
"""Maximum size of the kept states in bytes; if they would take more, none are kept, and passes start at the embeddings."""


def found_predictions(
    finder: TaskFinder,
    routes: Mapping[int, Route],
    limits: Mapping[int, Reject],
    predict: Callable[[Mapping[int, str], dict[int, Array]], Mapping[int, Prediction]],
) -> tuple[dict[int, Prediction], dict[int, Known]]:
    """Return what the most probable tasks of rows predict, and how far the rows are from these tasks, by row index.

    Args:
        finder: the finder that found the tasks.
        routes: the tasks of the rows.
        limits: see `TaskFinder.known`.
        predict: returns the predictions of rows, each by the task that is given for it, and stores what the banks give to
            their heads.

    Returns:
        The predictions, also of rows that are unknown, if they were needed to tell; and how far each row is.
    """
    vectors: dict[int, Array] = {}
    # Where the bank's vectors do not count, a row that is unknown needs no pass.
    before = {index: route for index, route in routes.items() if finder.router.sums(route.task).features is None}
    known = finder.known(before, {}, limits)
    asked = {index: route.task for index, route in routes.items() if index not in known or not known[index].rejected}
    predictions = predict(asked, vectors) if asked else {}
    known |= finder.known({index: route for index, route in routes.items() if index not in known}, vectors, limits)
    return finder.joined(predictions, asked, routes), known


def found_answers(
    finder: TaskFinder,
    routes: Mapping[int, Route],
    limits: Mapping[int, Reject],
    candidates: Mapping[int, int],
    predict: Callable[[Mapping[int, str], dict[int, Array]], Mapping[int, Prediction]],
) -> dict[int, Prediction]:
    """Return the prediction of each row whose task was found, with its tasks and its candidates, by row index.

    Args:
        finder: the finder that found the tasks.
        routes: the tasks of the rows.
        limits: see `TaskFinder.known`.
        candidates: the number of candidates that were asked for, of the rows where any were.
        predict: see `found_predictions`.
    """
    best, known = found_predictions(finder, routes, limits, predict)
    more = with_candidates(routes, best, candidates, lambda tasks: finder.joined(predict(tasks, {}), tasks, routes))
    return {
        index: route.with_tasks(None if known[index].rejected else best.get(index), known[index], more.get(index, ()))
        for index, route in routes.items()
    }


Encoding = tuple[object, ...]
"""Equal for tasks that encode a row in the same way and use the backbone in the same precision, with the same attention
implementation."""


class RowState(NamedTuple):
    """What the router reads from a row in one encoding."""

    features_F: Array
    truncated: bool
    """Whether only a part of the row was read; see `Prediction.truncated`."""


States = Mapping[Encoding, Mapping[int, RowState]]
"""What the router reads from each row, by encoding and row index; rows that no task takes are left out."""


@dataclass(frozen=True, kw_only=True)
class TaskFinder:
    """Finds the task of rows, among the tasks of a run that stored routing statistics."""

    totals: Totals
    """The routing statistics of all tasks that had been learned when this was created."""
    router: Router
    groups: Mapping[Encoding, tuple[Certificate, tuple[str, ...]]]
    """For each encoding, the certificate of one of its tasks, and the names of all its tasks."""
    layers: frozenset[str]
    """The layer ranges of the tasks' banks."""
    temperatures: Mapping[str, float]
    """By task, the temperature of its probabilities, if they are calibrated."""

    @property
    def certificates(self) -> dict[str, Certificate]:
        """One certificate per encoding, by task."""
        return {certificate.task: certificate for certificate, _ in self.groups.values()}

    @property
    def reads_images(self) -> bool:
        """Whether a task on images is among those that may be found."""
        return any(kind_of(certificate).reads_images for certificate, _ in self.groups.values())

    def lowest_layer(self, models: ModelCache) -> int:
        """Return the number of the lowest layer that any bank may change; below it, all banks compute the same states."""
        backbone = models.backbone_of(next(iter(self.certificates)))
        if len(backbone.anatomy.stacks) > 1:
            return 0
        return min(min(select_layers(layer, backbone.num_layers)) for layer in self.layers)

    def states(
        self,
        models: ModelCache,
        rows: Sequence[Row],
        batch_size: int = 32,
        *,
        known: States | None = None,
        below: Mapping[Encoding, StatesBelow] | None = None,
    ) -> States:
        """Return what the router reads from rows; the backbone is frozen, so they are the same after every task.

        Args:
            models: the run's backbone and banks.
            rows: the rows.
            batch_size: rows per batch.
            known: the result for the same rows and fewer tasks; only encodings that it lacks are computed.
            below: where to store the token states of the rows, by encoding and row index; None stores none.

        Raises:
            UnusableRowError: if all tasks that take rows of a row's type refuse this one.
        """
        states, refused = dict(known or {}), dict[int, UnusableRowError]()
        for encoding, (certificate, _) in self.groups.items():
            if encoding in states:
                continue
            accepted = [index for index, row in enumerate(rows) if accepts(row, certificate)]
            states[encoding] = {}
            indices, encoded = _encoded(models, rows, accepted, certificate, refused)
            if encoded is not None:
                backbone = models.backbone_of(certificate.task)
                backbone.model.train(False)
                own = None if below is None else StatesBelow(layer=below[encoding].layer)
                # With the attention implementation that the task's routing statistics were computed with; other threads wait.
                with locked(backbone.model), attending(backbone, certificate.environment.attention):
                    states_NF = row_states(
                        backbone, encoded, self.router.layers, models.pad_token_id, batch_size=batch_size, below=own
                    )
                states[encoding] = {
                    index: RowState(state_F, encoded.is_truncated(number))
                    for number, (index, state_F) in enumerate(zip(indices, states_NF, strict=True))
                }
                if below is not None and own is not None:
                    below[encoding].states.update({indices[position]: own.states[position] for position in own.states})
        for index, error in refused.items():
            if not any(index in own_states for own_states in states.values()):
                raise UnusableRowError(f"row {index + 1}: {error.reason}", error.reason)
        return states

    def routes(self, rows: Sequence[Row], states: States) -> list[Route]:
        """Return the task of each row, among the tasks that take rows of its type.

        Args:
            rows: the rows.
            states: states of these rows.

        Raises:
            InputError: if no task takes rows of a row's type.
        """
        router = self.router
        scores_NT = np.full((len(rows), len(router.tasks)), -np.inf)
        for encoding, (_, tasks) in self.groups.items():
            if own := states[encoding]:
                columns = [router.tasks.index(task) for task in tasks]
                scores_NT[np.ix_(list(own), columns)] = router.scores(_features(own.values()))[:, columns]
        for index in np.flatnonzero(np.isneginf(scores_NT).all(1)).tolist():
            raise InputError(
                f"row {index + 1} is {rows[index]!r:.80}, and no task that can be found without a name accepts such "
                "rows: name the task"
            )
        return self._ranked(scores_NT, states)

    def _ranked(self, scores_NT: Array, states: States) -> list[Route]:
        router, encodings = self.router, {task: key for key, (_, tasks) in self.groups.items() for task in tasks}
        probability_NT = router.probabilities(scores_NT)
        best_N = scores_NT.argmax(1)
        gap_N = np.ptp(np.sort(scores_NT, axis=1)[:, -2:], axis=1)  # 0 for a single task
        tied_N, truncated_N = np.zeros((2, len(scores_NT)), dtype=bool)
        for column in np.unique(best_N).tolist():
            task, indices = router.tasks[column], np.flatnonzero(best_N == column).tolist()
            own, (certificate, _) = states[encodings[task]], self.groups[encodings[task]]
            scores, *_ = ROUNDING[certificate.environment.precision]
            tied_N[indices] = gap_N[indices] <= scores if len(router.tasks) > 1 else False
            truncated_N[indices] = [own[index].truncated for index in indices]
        order_NT = np.argsort(-scores_NT, axis=1, kind="stable")[:, : NUM_RUNNERS_UP + 1]
        routes = []
        for index, (best, own_T, order_T) in enumerate(zip(best_N, probability_NT, order_NT.tolist(), strict=True)):
            shares = {router.tasks[column]: float(own_T[column]) for column in order_T if own_T[column] > 0}
            routes.append(
                Route(
                    task=router.tasks[int(best)],
                    tied=bool(tied_N[index]),
                    truncated=bool(truncated_N[index]),
                    probabilities=shares,
                    features={task: states[encodings[task]][index].features_F for task in shares},
                )
            )
        return routes

    def known(
        self, routes: Mapping[int, Route], vectors: Mapping[int, Array], limits: Mapping[int, Reject]
    ) -> dict[int, Known]:
        """Return how far rows are from the tasks that they were found to belong to, by row index.

        Args:
            routes: the tasks of the rows.
            vectors: what the banks of these tasks give to their heads, for tasks whose statistics hold it.
            limits: the limit of each row; None for the task's own.

        Raises:
            StoreError: if the stored routing statistics are not the certified ones, or a task was replaced meanwhile by one
                whose head does not read one vector per row.
        """
        by_task: dict[str, list[int]] = {}
        for index, route in routes.items():
            by_task.setdefault(route.task, []).append(index)
        known: dict[int, Known] = {}
        for task, indices in by_task.items():
            sums, (certificate, _) = self.router.sums(task), self._group_of(task)
            features_NF = np.stack([routes[index].features[task] for index in indices])
            if sums.features is not None and not vectors.keys() >= set(indices):
                raise StoreError(f"task {task!r} was replaced while its rows were being predicted: try again.")
            vectors_ND = None if sums.features is None else np.stack([vectors[index] for index in indices])
            _, *rounding = ROUNDING[certificate.environment.precision]
            for index, share, least, most in zip(
                indices, *sums.shares(features_NF, vectors_ND, (rounding[0], rounding[1])), strict=True
            ):
                given = limits.get(index)
                limit = 0.0 if given == "never" else sums.reject if given is None else given
                tied = bool(least < limit <= most)
                known[index] = Known(share=float(share), rejected=bool(share < limit), tied=tied)
        return known

    def _group_of(self, task: str) -> tuple[Certificate, tuple[str, ...]]:
        return next(group for group in self.groups.values() if task in group[1])

    def joined(
        self, predictions: Mapping[int, Prediction], tasks: Mapping[int, str], routes: Mapping[int, Route]
    ) -> dict[int, Prediction]:
        """Return predictions in which the frozen states have a say in the label, for tasks that give them a weight.

        The log-probability of a label is then the bank's, not calibrated, plus `TaskSums.label_weight` times the router's.

        Args:
            predictions: what the banks of tasks predict, by row index.
            tasks: these tasks, each among the most probable ones of its row.
            routes: the most probable tasks of the rows.
        """
        joined = dict(predictions)
        for index, prediction in predictions.items():
            task, shares = tasks[index], prediction.probabilities
            sums = self.router.sums(task)
            if not sums.label_weight or shares is None or len(sums.counts_C) != len(shares) or len(shares) < 2:
                continue
            scores_C = sums.label_weight * self.router.label_scores(routes[index].features[task][None], task)[0]
            logs_C = np.log(np.maximum(np.fromiter(shares.values(), dtype=np.float64), 1e-300))
            # Those of the logits as they are, so that calibration changes no label.
            own_C = self.temperatures.get(task, 1.0) * logs_C + scores_C
            whole_C = np.exp(own_C - own_C.max())
            whole_C /= whole_C.sum()
            second, first = np.sort(own_C)[-2:].tolist()
            certificate, _ = self._group_of(task)
            precision, names = certificate.environment.precision, list(shares)
            rounding = LABELS_ROUNDING[precision] + sums.label_weight * ROUNDING[precision][0]
            joined[index] = replace(
                prediction,
                value=names[int(own_C.argmax())],
                probabilities=dict(zip(names, whole_C.tolist(), strict=True)),
                near_tie=bool(first - second <= rounding),
            )
        return joined


def _features(rows: Iterable[RowState]) -> Array:
    """Return the features of rows, ``(N, F)``."""
    return np.stack([row.features_F for row in rows])


def _encoded(
    models: ModelCache,
    rows: Sequence[Row],
    indices: Sequence[int],
    certificate: Certificate,
    refused: dict[int, UnusableRowError],
) -> tuple[Sequence[int], TokenisedRows | None]:
    """Return the indices of the rows that a task can read, and these rows encoded; None if there are none.

    A row that the encoding refuses cannot be a row of this task, but may be one of another.

    Args:
        models: the run's tokenizer and image processing.
        rows: all rows.
        indices: the rows whose type the task takes.
        certificate: the certificate of the task.
        refused: where to store why a row is refused, by its index.
    """
    taken: list[int] = []
    whole: TokenisedRows | None = None

    def encode(own: Sequence[int]) -> None:
        nonlocal whole
        request = check_request(rows, own, certificate)
        encoded = request.encoded(models, finding=True)
        # A text may be a row of another task, while a list of words cannot.
        request.check_all_seen(encoded, [place for place, index in enumerate(own) if isinstance(rows[index], str)])
        taken.extend(own)
        whole = encoded

    refused |= halving_refused(indices, encode)
    if len(taken) > 0 and len(whole or ()) != len(taken):  # only in parts, each without the others
        whole = check_request(rows, taken, certificate).encoded(models, finding=True)
    return taken, whole


_finders: WeakKeyDictionary[ModelCache, TaskFinder] = WeakKeyDictionary()


def task_finder(models: ModelCache) -> TaskFinder:
    """Return the finder over all learned tasks with routing statistics; only tasks learned since the last call are read.

    Raises:
        InputError: if no task stored routing statistics, or tasks stored them from different layers.
        StoreError: if the stored routing statistics are not the certified ones.
    """
    store = models.store
    before = _finders.get(models)
    if before is not None and before.totals.seals == {commit.task: commit.seal for commit in store.commits()}:
        return before
    check_can_route(store)
    totals = totals_of(store, None if before is None else before.totals)
    groups: dict[Encoding, tuple[Certificate, tuple[str, ...]]] = {}
    layers, temperatures = set(), dict[str, float]()
    for task in sorted(totals.means):
        certificate = store.certificate(task)
        first, tasks = groups.get(encoding := _encoding(certificate), (certificate, ()))
        groups[encoding] = (first, (*tasks, task))
        if certificate.decision is not None and certificate.decision.temperature is not None:
            temperatures[task] = certificate.decision.temperature
        layers.add("all" if any(m.config.outside for m in certificate.bank.modifications) else certificate.bank.layers)
    router = Router(totals, partial(read_sums, store))
    finder = TaskFinder(
        totals=totals, router=router, groups=groups, layers=frozenset(layers), temperatures=temperatures
    )
    _finders[models] = finder
    return finder


def _encoding(certificate: Certificate) -> Encoding:
    return (*encoding_of(certificate), certificate.environment.precision, certificate.environment.attention)


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
        by_task = distances(finder.totals, sums.counts_C, sums.means_CF)
        return {task: distance for task, distance in by_task.items() if task != target}
    rows = Given(models.store, target).unnamed(images=finder.reads_images)
    group = next((k for k, (m, _) in finder.groups.items() if all(accepts(row, m) for row in rows)), None)
    if not rows or group is None:
        raise InputError(
            f"rows: got {counted(len(rows), 'row')}; give at least one, and only rows of a type that one of the learned "
            "tasks takes (texts, pairs of texts, lists of words, or images)"
        )
    read = finder.states(models, rows)[group].values()
    if number := sum(row.truncated for row in read):  # the distances cannot say it
        _log.warning("%s", truncation_notice(number, len(rows), [finder.groups[group][0]]))
    states_NF = _features(read)
    return distances(finder.totals, np.array([len(states_NF)]), states_NF.mean(0, keepdims=True))


def kept_states(models: ModelCache, finder: TaskFinder, num_rows: int) -> dict[Encoding, StatesBelow] | None:
    """Return, for each encoding, an object that can hold the rows' states; None if no bank could start from them.

    Args:
        models: the run's backbone and banks.
        finder: finds the task of the rows.
        num_rows: number of rows.
    """
    layer, backbone = finder.lowest_layer(models), models.backbone_of(next(iter(finder.certificates)))
    num_tokens = backbone.max_length or 1024  # images have no maximum length; few models have more patches
    fits = num_rows * num_tokens * backbone.hidden_size * 4 <= MAX_BYTES
    return {encoding: StatesBelow(layer=layer) for encoding in finder.groups} if layer and fits else None


def chosen_states(
    finder: TaskFinder, kept: Mapping[Encoding, StatesBelow] | None, tasks: Mapping[int, str]
) -> StatesBelow | None:
    """Return the kept states of rows, each encoded as its task encodes it.

    Args:
        finder: the finder that found the tasks.
        kept: the kept states, by encoding; None if there are none.
        tasks: the task of each row, by row index.
    """
    if not kept:
        return None
    encodings = {task: encoding for encoding, (_, names) in finder.groups.items() for task in names}
    states = {index: kept[encodings[task]].states[index] for index, task in tasks.items()}
    return StatesBelow(layer=next(iter(kept.values())).layer, states=states)


def with_states(batch: dict[str, Tensor], below: StatesBelow | None, rows: Sequence[int]) -> dict[str, Tensor]:
    """Return a batch with the states from which its pass can start, if there are any.

    Args:
        batch: an evaluation batch, padded on the right.
        below: the states, by row; None if there are none.
        rows: the row index, as in ``below``, of each row of the batch.
    """
    if below is None:
        return batch
    states = [below.states[row] for row in rows]
    if "attention_mask" in batch and batch["attention_mask"].sum(1).tolist() != list(map(len, states)):
        return (
            batch  # of a task that generates, or one that was replaced in the meantime and encodes its rows differently
        )
    width = batch["input_ids"].shape[1] if "input_ids" in batch else len(states[0])
    return {**batch, STATES: torch.stack([pad(each_TH, (0, 0, 0, width - len(each_TH))) for each_TH in states])}
