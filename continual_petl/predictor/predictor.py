"""Predict with learned banks: rows of any tasks in; labels, numbers, tags or texts out."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from continual_petl.banks.mixed.stack_cache import stacks_of
from continual_petl.errors import InputError, StoreError, counted, known_names
from continual_petl.heads.predictions import Prediction
from continual_petl.learner.generate import Decoding
from continual_petl.learner.memory import oom_reported
from continual_petl.learner.respond import respond
from continual_petl.predictor.batching import batches, groups, joined
from continual_petl.predictor.given import Given, tasks_in
from continual_petl.predictor.records import Row, Unknown
from continual_petl.predictor.row_checks import Request, check_request, encode_all, in_words
from continual_petl.predictor.states_below import chosen_states, kept_states, with_states
from continual_petl.predictor.task_finder import task_finder
from continual_petl.router.row_states import StatesBelow
from continual_petl.store.bank_cache import CachedBank
from continual_petl.store.folder.progress import not_learned
from continual_petl.store.model_cache import ModelCache
from continual_petl.streams.batches.collate import collate
from continual_petl.streams.batches.loaders import EvaluationLoader


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
        unknown: Unknown | None = None,
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
            unknown: allowed only without a task. ``reject``, the default: a row that does not resemble the rows of any task
                gets no prediction; ``nearest``: the bank of the most probable task predicts it.

        Returns:
            A single prediction for a single row, otherwise a list with one prediction per row.

        Raises:
            InputError: if a task has not been learned, or a row is not of the type that the task expects; without a task, if
                the run cannot find tasks by itself, or no task takes a row of this type.
            StoreError: if the stored routing statistics are not the certified ones.
        """
        if unknown not in (None, "reject", "nearest"):
            raise InputError(f"unknown: got {unknown!r}; allowed: 'reject' and 'nearest'")
        if task is None:
            return self._found(rows, batch_size, unknown or "reject")
        if unknown is not None:
            raise InputError(f"unknown: got {unknown!r}, but a task was named: leave one of the two out")
        if not isinstance(task, str):
            return self.predict_each(rows, task, batch_size=batch_size)
        self._check_learned([task])
        given = Given(self._models.store, rows, [task])
        rows = given.rows(task)
        predictions = self._alone(rows, range(len(rows)), task, batch_size) if rows else []
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
        rows = given.rows_of(tasks)
        numbers: dict[str, list[int]] = {}
        for number, name in enumerate(tasks):
            numbers.setdefault(name, []).append(number)
        if len(numbers) == 1:
            return self._alone(rows, range(len(rows)), tasks[0], batch_size)
        mixed = self._mixed(rows, numbers, batch_size)
        return [mixed[number] for number in range(len(rows))]

    def _found(self, rows: Any, batch_size: int, unknown: Unknown) -> Prediction | list[Prediction]:
        """Return the predictions of rows without a task, each with the bank of the task that the router finds for it."""
        finder = task_finder(self._models)
        given = Given(self._models.store, rows)
        listed = given.unnamed(images=finder.reads_images)
        if not listed:
            return []
        kept = kept_states(self._models, finder, len(listed))
        routes = finder.routes(listed, finder.states(self._models, listed, batch_size, below=kept))
        tasks = {index: route.task for index, route in enumerate(routes) if unknown == "nearest" or not route.unknown}
        by_index = self.resume(listed, tasks, chosen_states(finder, kept, tasks), batch_size=batch_size)
        predictions = [route.beside(by_index.get(index)) for index, route in enumerate(routes)]
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
            predictions |= self._of_all(given.rows(alike[0]), alike, batch_size)
        return (
            {task: predictions[task][0] for task in tasks} if given.one else {task: predictions[task] for task in tasks}
        )

    def _of_all(self, rows: Sequence[Row], tasks: Sequence[str], batch_size: int) -> dict[str, list[Prediction]]:
        """Return the predictions of several tasks for the same rows."""
        store, models, numbers = self._models.store, self._models, range(len(rows))
        predictions: dict[str, list[Prediction]] = {}
        asked = {task: check_request(rows, numbers, store.certificate(task)) for task in tasks}
        certificates = {task: request.certificate for task, request in asked.items()}
        for group in groups(certificates, models.backbone_of, models.held_banks.max_bytes, same_rows=True):
            if len(group) == 1:
                predictions[group[0]] = self._alone(rows, numbers, group[0], batch_size)
            else:
                own = [asked[task] for task in group]
                predictions |= zip(
                    group, self._all(own, [self._held(request) for request in own], batch_size), strict=True
                )
        return predictions

    @torch.no_grad()
    def resume(
        self, rows: Sequence[Row], tasks: Mapping[int, str], below: StatesBelow | None, *, batch_size: int = 32
    ) -> dict[int, Prediction]:
        """Return the predictions for some rows, by row index; the rows' lower layers may have been computed already.

        Each prediction is the same as from `predict`, up to rounding (1e-6 in fp32).

        Args:
            rows: as in `predict`.
            tasks: the learned task of each row to predict, by row index.
            below: the states of these rows, or None. Passes for banks that change lower layers, and for tasks that
                generate text, start at the embeddings instead.
            batch_size: rows per batch.

        Raises:
            InputError: as in `predict`.
        """
        numbers: dict[str, list[int]] = {}
        for number, name in tasks.items():
            numbers.setdefault(name, []).append(number)
        self._check_learned(list(numbers))
        return self._mixed(rows, numbers, batch_size, below) if numbers else {}

    def _all(
        self, asked: Sequence[Request], held: Sequence[CachedBank], batch_size: int, below: StatesBelow | None = None
    ) -> list[list[Prediction]]:
        """Return the predictions of tasks that encode the same rows identically, or of one task."""
        models, backbone = self._models, held[0].backbone
        backbone.model.train(False)
        encoded, numbers = asked[0].encoded(models), asked[0].numbers
        predictions: list[dict[int, Prediction]] = [{} for _ in asked]
        for batch in EvaluationLoader(encoded, batch_size, models.pad_token_id, kind=asked[0].certificate.kind):
            positions, near = batch["index"].tolist(), list[bool]()
            with oom_reported(_names(asked), batch, f"batch_size (it is {batch_size})"), held[0].attending():
                tensors = {name: tensor.to(backbone.model.device) for name, tensor in batch.items()}
                outputs_of_tasks = respond(
                    held,
                    with_states(tensors, below, [numbers[position] for position in positions]),
                    rows_at_once=batch_size,
                    states_layer=None if below is None else below.layer,
                    decoding=Decoding(tokenizer=models.tokenizer, near_ties=near),
                )
            for own, request, outputs in zip(predictions, asked, outputs_of_tasks, strict=True):
                own |= zip(
                    positions, in_words(outputs, request.certificate, models, encoded, positions, near), strict=True
                )
        return [[own[position] for position in range(len(own))] for own in predictions]

    def _check_learned(self, tasks: Sequence[str]) -> None:
        store = self._models.store
        unknown = [task for task in tasks if not isinstance(task, str) or not store.has(task)]
        if unknown:
            known = known_names(store.tasks, unknown[0])
            more = f" (the same goes for {counted(len(unknown) - 1, 'other')})" if len(unknown) > 1 else ""
            raise InputError(f"{not_learned(store, unknown[0])}{more}; learned tasks: {known}")

    def _alone(
        self, rows: Sequence[Row], numbers: Sequence[int], task: str, batch_size: int, below: StatesBelow | None = None
    ) -> list[Prediction]:
        """Return the predictions of one task for its rows."""
        store, models = self._models.store, self._models
        # Rows are checked first, because loading a bank takes longer.
        asked, held = store.consistently(
            lambda: (check_request(rows, numbers, store.certificate(task)), models.held(task)), task
        )
        return self._all([asked], [held], batch_size, below)[0]

    def _mixed(
        self, rows: Sequence[Row], numbers: Mapping[str, list[int]], batch_size: int, below: StatesBelow | None = None
    ) -> dict[int, Prediction]:
        """Return the predictions of several tasks by row index."""
        store, models = self._models.store, self._models
        asked = {task: check_request(rows, own, store.certificate(task)) for task, own in numbers.items()}
        certificates = {task: request.certificate for task, request in asked.items()}
        predictions: dict[int, Prediction] = {}
        for group in groups(certificates, models.backbone_of, models.held_banks.max_bytes):
            if len(group) == 1:
                own = numbers[group[0]]
                predictions |= zip(own, self._alone(rows, own, group[0], batch_size, below), strict=True)
            else:
                predictions |= self._group([asked[task] for task in group], batch_size, below)
        return predictions

    def _group(
        self, asked: Sequence[Request], batch_size: int, below: StatesBelow | None = None
    ) -> dict[int, Prediction]:
        """Return the predictions of tasks that share batches."""
        models = self._models
        parts = encode_all(asked, models)
        held = [self._held(request) for request in asked]
        backbone = held[0].backbone
        backbone.model.train(False)
        kinds: dict[Hashable, int] = {}
        stacks = stacks_of(backbone.model)
        kind_of_T = [kinds.setdefault(stacks.kind(cached.bank), len(kinds)) for cached in held]
        mixed = joined(parts)
        task_N = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        first_N = np.repeat(np.cumsum([0, *map(len, parts[:-1])]), [len(part) for part in parts])
        predictions: dict[int, Prediction] = {}
        for rows, whose in batches(mixed.lengths, task_N, kind_of_T, batch_size):
            batch = collate(mixed, rows, models.pad_token_id, kind=asked[0].certificate.kind, train=False)
            own, counts = [asked[task] for task, _ in whose], [count for _, count in whose]
            positions_N = rows - first_N[rows]
            numbers = [asked[task].numbers[row] for task, row in zip(task_N[rows], positions_N, strict=True)]
            with oom_reported(_names(own), batch, f"batch_size (it is {batch_size})"), held[0].attending():
                tensors = {name: tensor.to(backbone.model.device) for name, tensor in batch.items()}
                outputs_of_tasks = respond(
                    [held[task] for task, _ in whose],
                    with_states(tensors, below, numbers),
                    counts=counts,
                    states_layer=None if below is None else below.layer,
                )
            answers: list[Prediction] = []
            for (task, _), own_positions, outputs in zip(
                whose, np.split(positions_N, np.cumsum(counts)[:-1]), outputs_of_tasks, strict=True
            ):
                answers += in_words(outputs, asked[task].certificate, models, parts[task], own_positions.tolist())
            predictions |= zip(numbers, answers, strict=True)
        return predictions

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
