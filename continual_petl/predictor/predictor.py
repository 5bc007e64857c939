"""Predict with learned banks: rows of any tasks in; labels, numbers, tags or texts out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from continual_petl.banks.mixed.stack_cache import stacks_of
from continual_petl.errors import InputError, StoreError, counted, known_names
from continual_petl.heads.predictions import Prediction
from continual_petl.learner.generate import Decoding
from continual_petl.learner.memory import oom_reported
from continual_petl.learner.respond import respond
from continual_petl.predictor.batching import groups, mixed_batches, same_batches
from continual_petl.predictor.given import Given, tasks_in
from continual_petl.predictor.records import Row
from continual_petl.predictor.routes import check_candidates
from continual_petl.predictor.row_checks import Request, check_request, encode_all, in_words
from continual_petl.predictor.task_finder import (
    chosen_states,
    found_answers,
    kept_states,
    task_finder,
    with_states,
)
from continual_petl.router.row_states import StatesBelow
from continual_petl.router.sums import Array
from continual_petl.router.task_sums import narrowed
from continual_petl.store.bank_cache import CachedBank
from continual_petl.store.folder.progress import not_learned
from continual_petl.store.model_cache import ModelCache
from continual_petl.streams.encoding.tokenise import TokenisedRows
from continual_petl.streams.schema.routing_spec import Reject, check_reject


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Where the passes of rows through their banks start, and what is kept of them."""

    batch_size: int
    """Rows per batch."""
    below: StatesBelow | None = None
    """The states of the rows from which passes can start; None: they start at the embeddings."""
    vectors: dict[int, Array] | None = None
    """Where to store, by row index, what a bank gives to a head that reads one vector per row; None stores nothing."""


class Predictor:
    """Predict rows with the banks of a run.

    Args:
        models: the run's backbone and banks.
    """

    def __init__(self, models: ModelCache) -> None:
        self._models = models

    @torch.no_grad()
    def predict(
        self,
        rows: Any,
        task: str | Iterable[str] | None = None,
        *,
        batch_size: int = 32,
        reject: Reject = None,
        candidates: int | None = None,
    ) -> Prediction | list[Prediction]:
        """Return the prediction for a single row, or a list of predictions in the order of the rows.

        Rows of several tasks share batches, and the frozen backbone is computed once for all of them; each row gets the same
        prediction as from its task's bank alone, up to rounding (1e-6 in fp32).

        Args:
            rows: a list of rows like those that their task was learned on: texts; pairs of texts (tuples); lists of words
                (or texts, split at spaces); conversations (the text of a user message, or a list of messages ``{"role": ...,
                "content": ...}``); if each row has its own options, pairs of a source and its options (a tuple of a text,
                or messages, and a list); images. Or a single row: a text; a tuple; a path, a Pillow image, an array
                ``(height, width)`` or ``(height, width, 3)``. A list is never a single row: the words of one text are
                ``[["Its", "words"]]``. A tuple is always a single row.
                Instead of a list: any other container that `streams.schema.containers.rows_in` reads. Mappings, and the rows
                of tables, are read by the names of their columns, the task's own or the standard ones; ``{"text": [...]}``
                holds a row per cell, ``{"text": "..."}`` is a single row.
            task: the learned task whose bank predicts, or a list with one task per row; None finds the task of each row.
            batch_size: rows per batch.
            reject: allowed only without a task. A row gets no prediction if a smaller share than this of the most probable
                task's own rows is as far from it (`Prediction.known`): 0.05 rejects about 5 % of its own rows, and more
                foreign ones than 0.01. ``never``: the most probable task predicts every row. None: the limit that the task
                was learned with, by default 0.01.
            candidates: allowed only without a task: of each row, also return the predictions of so many of its most probable
                tasks, in `Prediction.candidates`, without tasks that refuse the row, such as one that has to give every word
                a tag if the row is too long. They take a pass of the banks for each candidate, but no other pass of the
                layers below them.

        Returns:
            A single prediction for a single row, otherwise a list with one prediction per row.

        Raises:
            InputError: if a task has not been learned, or a row is not of the type that the task expects; without a task, if
                the run cannot find tasks by itself, or no task takes a row of this type.
            StoreError: if the stored routing statistics are not the certified ones.
        """
        check_reject(reject)
        check_candidates(candidates)
        if task is None:
            return self._found(rows, batch_size, reject, candidates)
        for name, value in {"reject": reject, "candidates": candidates}.items():
            if value is not None:
                raise InputError(f"{name}: got {value!r}, but a task was named: leave one of the two out")
        if not isinstance(task, str):
            return self.predict_each(rows, task, batch_size=batch_size)
        self._check_learned([task])
        given = Given(self._models.store, rows, [task])
        rows = given.rows(task)
        predictions = self._by_task(rows, {task: range(len(rows))}, Passes(batch_size=batch_size))[task] if rows else []
        return predictions[0] if given.one else predictions

    @torch.no_grad()
    def predict_each(self, rows: Any, tasks: Iterable[str], *, batch_size: int = 32) -> list[Prediction]:
        """Return the predictions for several rows, each by the bank of its own task; see `predict`.

        Args:
            rows: several rows.
            tasks: the learned task of each row.
            batch_size: rows per batch.
        """
        tasks = tasks_in(tasks)
        self._check_learned([*dict.fromkeys(tasks)])
        given = Given(self._models.store, rows, tasks)
        if given.one:
            raise InputError(
                f"a single row was given together with a list of {counted(len(tasks), 'task')}: give the name of one task as "
                "a string, or use predict_all for several tasks on the same row"
            )
        if len(tasks) != len(given):
            raise InputError(
                f"got {counted(len(given), 'row')}, but {counted(len(tasks), 'task')}: give one task per row, in the same "
                "order, or a single task for all rows"
            )
        predictions = self._by_row(given.rows_of(tasks), dict(enumerate(tasks)), Passes(batch_size=batch_size))
        return [predictions[number] for number in range(len(tasks))]

    def _found(
        self, rows: Any, batch_size: int, reject: Reject, candidates: int | None
    ) -> Prediction | list[Prediction]:
        """Return the predictions of rows without a task, each with the bank of the task that the router finds for it."""
        finder = task_finder(self._models)
        given = Given(self._models.store, rows)
        listed = given.unnamed(images=finder.reads_images)
        if not listed:
            return []
        kept = kept_states(self._models, finder, len(listed))
        routes = finder.routes(listed, finder.states(self._models, listed, batch_size, below=kept))

        def by_tasks(tasks: Mapping[int, str], vectors: dict[int, Array]) -> dict[int, Prediction]:
            below = chosen_states(finder, kept, tasks)
            return self.resume(listed, tasks, below, batch_size=batch_size, vectors=vectors)

        by_row, asked = dict(enumerate(routes)), {index: candidates for index in range(len(routes)) if candidates}
        predictions = [*found_answers(finder, by_row, dict.fromkeys(by_row, reject), asked, by_tasks).values()]
        return predictions[0] if given.one else predictions

    @torch.no_grad()
    def predict_all(
        self, rows: Any, tasks: str | Iterable[str], *, batch_size: int = 32
    ) -> dict[str, Prediction] | dict[str, list[Prediction]]:
        """Return the predictions of several tasks for the same rows, by task, in the order of the rows.

        The frozen layers below the banks are computed once for all tasks; if all banks are in upper layers, that is most of
        the backbone. Each prediction is the same as for the task alone, up to rounding (1e-6 in fp32).

        Args:
            rows: inputs of the type that all tasks were learned on, or a single row; see `predict`.
            tasks: learned tasks, or the name of one.
            batch_size: rows per batch; with fewer rows, tasks share a pass, in which a row counts once per task.

        Returns:
            By task: a single prediction for a single row, otherwise a list with one prediction per row.

        Raises:
            InputError: if a task has not been learned, or a row is not of the type that the task expects.
        """
        tasks = [tasks] if isinstance(tasks, str) else tasks_in(tasks)
        self._check_learned(tasks)
        given = Given(self._models.store, rows, tasks)
        predictions: dict[str, list[Prediction]] = {task: [] for task in tasks}
        for alike in given.alike(tasks) if len(given) else ():
            rows = given.rows(alike[0])
            numbers, passes = dict.fromkeys(alike, range(len(rows))), Passes(batch_size=batch_size)
            predictions |= self._by_task(rows, numbers, passes, same_rows=True)
        return (
            {task: predictions[task][0] for task in tasks} if given.one else {task: predictions[task] for task in tasks}
        )

    @torch.no_grad()
    def resume(
        self,
        rows: Sequence[Row],
        tasks: Mapping[int, str],
        below: StatesBelow | None,
        *,
        batch_size: int = 32,
        vectors: dict[int, Array] | None = None,
    ) -> dict[int, Prediction]:
        """Return the predictions for some rows, by row index; the rows' lower layers may have been computed already.

        Each prediction is the same as from `predict`, up to rounding (1e-6 in fp32).

        Args:
            rows: as in `predict`.
            tasks: the learned task of each row to predict, by row index.
            below: the states of these rows, or None. Passes for banks that change lower layers, and for tasks that
                generate text, start at the embeddings instead.
            batch_size: rows per batch.
            vectors: where to store, by row index, what the bank gives to a head that reads one vector per row.

        Raises:
            InputError: as in `predict`.
        """
        self._check_learned([*dict.fromkeys(tasks.values())])
        return self._by_row(rows, tasks, Passes(batch_size=batch_size, below=below, vectors=vectors))

    def _by_row(self, rows: Sequence[Row], tasks: Mapping[int, str], passes: Passes) -> dict[int, Prediction]:
        """Return the predictions of rows by index; see `resume`."""
        numbers: dict[str, list[int]] = {}
        for number, name in tasks.items():
            numbers.setdefault(name, []).append(number)
        by_task = self._by_task(rows, numbers, passes)
        return {
            number: found for task, own in numbers.items() for number, found in zip(own, by_task[task], strict=True)
        }

    def _by_task(
        self, rows: Sequence[Row], numbers: Mapping[str, Sequence[int]], passes: Passes, *, same_rows: bool = False
    ) -> dict[str, list[Prediction]]:
        """Return the predictions of each task for its rows, whose indices are ``numbers``; see `groups` for ``same_rows``."""
        store, models = self._models.store, self._models
        if len(numbers) == 1:
            ((task, own),) = numbers.items()
            # Rows are checked first, because loading a bank takes longer.
            request, held = store.consistently(
                lambda: (check_request(rows, own, store.certificate(task)), models.held(task)), task
            )
            parts = [request.encoded(models)]
            found = self._of_group([request], [held], parts, passes, same_rows=True)
            return {task: found[0]}
        asked = {task: check_request(rows, own, store.certificate(task)) for task, own in numbers.items()}
        certificates = {task: request.certificate for task, request in asked.items()}
        predictions: dict[str, list[Prediction]] = {}
        for group in groups(certificates, models.backbone_of, models.held_banks.max_bytes, same_rows=same_rows):
            if len(group) == 1:
                predictions |= self._by_task(rows, {group[0]: numbers[group[0]]}, passes)
            else:
                own_rows = [asked[task] for task in group]
                parts = [own_rows[0].encoded(models)] * len(group) if same_rows else encode_all(own_rows, models)
                held_banks = [self._held(request) for request in own_rows]
                found = self._of_group(own_rows, held_banks, parts, passes, same_rows=same_rows)
                predictions |= zip(group, found, strict=True)
        return predictions

    def _of_group(
        self,
        asked: Sequence[Request],
        held: Sequence[CachedBank],
        parts: Sequence[TokenisedRows],
        passes: Passes,
        *,
        same_rows: bool,
    ) -> list[list[Prediction]]:
        """Return the predictions of each task of a group; ``parts`` are its encoded rows, the same for all if `same_rows`."""
        models, model = self._models, held[0].backbone.model
        size, below, vectors = passes.batch_size, passes.below, passes.vectors
        model.train(False)
        predictions: list[dict[int, Prediction]] = [{} for _ in asked]
        kind, pad = asked[0].certificate.kind, models.pad_token_id
        if same_rows:
            batches = same_batches(parts[0], len(asked), size, pad, kind)
        else:
            stacks = stacks_of(model)
            batches = mixed_batches(parts, [stacks.kind(own.bank) for own in held], size, pad, kind)
        for batch, whose in batches:
            numbers = [asked[task].numbers[place] for task, own in whose[: 1 if same_rows else None] for place in own]
            near, read = list[bool](), list[Tensor | None]()
            tasks = _names([asked[task] for task, _ in whose])
            with oom_reported(tasks, batch, f"batch_size (it is {size})"), held[0].attending():
                outputs_of_tasks = respond(
                    [held[task] for task, _ in whose],
                    with_states({name: tensor.to(model.device) for name, tensor in batch.items()}, below, numbers),
                    counts=None if same_rows else [len(own) for _, own in whose],
                    rows_at_once=size,
                    states_layer=None if below is None else below.layer,
                    decoding=Decoding(tokenizer=models.tokenizer, near_ties=near) if same_rows else None,
                    vectors=None if vectors is None else read,
                )
            if vectors is not None:
                for (task, own), vectors_BD in zip(whose, read, strict=True):
                    if vectors_BD is not None:
                        vectors |= zip([asked[task].numbers[place] for place in own], narrowed(vectors_BD), strict=True)
            for (task, own), outputs in zip(whose, outputs_of_tasks, strict=True):
                found = in_words(outputs, asked[task].certificate, models, parts[task], own, near)
                predictions[task] |= zip(own, found, strict=True)
        return [[own[place] for place in range(len(own))] for own in predictions]

    def _check_learned(self, tasks: Sequence[str]) -> None:
        store = self._models.store
        unknown = [task for task in tasks if not isinstance(task, str) or not store.has(task)]
        if unknown:
            known = known_names(store.tasks, unknown[0])
            more = f" (the same goes for {counted(len(unknown) - 1, 'other')})" if len(unknown) > 1 else ""
            raise InputError(f"{not_learned(store, unknown[0])}{more}; learned tasks: {known}")

    def _held(self, asked: Request) -> CachedBank:
        """Return a task's bank, after checking that it is the bank that the rows were prepared for."""
        store, task = self._models.store, asked.certificate.task
        now, held = store.consistently(lambda: (store.certificate(task), self._models.held(task)), task)
        if now.seal != asked.certificate.seal:
            raise StoreError(
                f"task {task!r} was replaced in {store.folder} while its rows were being prepared: try again."
            )
        return held


def _names(asked: Sequence[Request]) -> str:
    names = [request.certificate.task for request in asked]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
