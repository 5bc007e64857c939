"""Answers from learned banks: rows of any tasks in; labels, numbers, tags or texts out."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import overload

import numpy as np
import torch

from continual_petl.errors import InputError, StoreError, known_names
from continual_petl.heads.words import Answer
from continual_petl.learner.memory import memory_told
from continual_petl.learner.respond import respond
from continual_petl.learner.to_all import Task, respond_to_all
from continual_petl.learner.together import Part, respond_together
from continual_petl.predictor.asking import Asked, ask, in_words
from continual_petl.predictor.asking import Row as Row
from continual_petl.predictor.lanes import batches, joined, lanes, like
from continual_petl.predictor.one_or_many import OneOrSeveral, OneRow, as_rows
from continual_petl.store.held import Held
from continual_petl.store.manifest import Manifest
from continual_petl.store.position import not_learned
from continual_petl.store.residents import Residents
from continual_petl.streams.batches.collate import collate
from continual_petl.streams.batches.loaders import EvaluationLoader
from continual_petl.streams.encoding.tokenise import TokenisedRows


class Predictor:
    """Answer rows with the banks of a run.

    Args:
        residents: the run's backbone and banks.
    """

    def __init__(self, residents: Residents) -> None:
        self._residents = residents

    # A text is also a sequence (of letters), and a pair one of texts: the first signature that fits counts.
    @overload
    def predict(self, rows: OneRow, task: str, *, batch_size: int = 32) -> Answer: ...
    @overload
    def predict(self, rows: OneOrSeveral, task: str, *, batch_size: int = 32) -> Answer | list[Answer]: ...
    @overload
    def predict(self, rows: Sequence[Row], task: str | Sequence[str], *, batch_size: int = 32) -> list[Answer]: ...
    @torch.no_grad()
    def predict(
        self, rows: Row | Sequence[Row], task: str | Sequence[str], *, batch_size: int = 32
    ) -> Answer | list[Answer]:
        """Return the answer to one row, or the list of answers to several, in their order.

        Rows of several tasks share batches, and the frozen backbone is computed once for all of them; each row gets what its
        own task's bank alone gives it, up to rounding (1e-6 in fp32).

        Args:
            rows: a list of what their task was learned on: texts; pairs of texts (tuples); lists of words (or texts, split at
                their spaces); images. Or one row by itself: a text; a pair; a path, an image of Pillow, an array
                ``(height, width)`` or ``(height, width, 3)``. A list is never one row: the words of one text are
                ``[["Its", "words"]]``. A tuple of two texts is one pair to a task on pairs, and two rows to others.
            task: the learned task that answers, or one for each row in a list.
            batch_size: rows at a time.

        Returns:
            An answer where one row was given by itself, else a list with one answer per row.

        Raises:
            InputError: if a task is not learned, or a row is not what it expects.
        """
        if isinstance(task, str):
            self._check_learned([task])
            rows, one = as_rows(rows, lambda: self._manifests([task]))
            found = self._alone(rows, range(len(rows)), task, batch_size) if rows else []
            return found[0] if one else found
        tasks = list(task)
        rows, one = as_rows(rows, dict)
        if one:
            raise InputError(
                f"one row was given by itself, but a list of {len(tasks)} tasks: give the name of one task as a text, or ask "
                "several tasks the same row with predict_all"
            )
        if len(tasks) != len(rows):
            raise InputError(
                f"{len(rows)} rows, but {len(tasks)} tasks: give one task a row, in the same order, or one name for all"
            )
        numbers: dict[str, list[int]] = {}
        for number, name in enumerate(tasks):
            numbers.setdefault(name, []).append(number)
        self._check_learned(list(numbers))
        if len(numbers) == 1:
            return self._alone(rows, range(len(rows)), tasks[0], batch_size)
        mixed = self._mixed(rows, numbers, batch_size)
        return [mixed[number] for number in range(len(rows))]

    @overload
    def predict_all(self, rows: OneRow, tasks: Sequence[str], *, batch_size: int = 32) -> dict[str, Answer]: ...
    @overload
    def predict_all(
        self, rows: OneOrSeveral, tasks: Sequence[str], *, batch_size: int = 32
    ) -> dict[str, Answer] | dict[str, list[Answer]]: ...
    @overload
    def predict_all(
        self, rows: Sequence[Row], tasks: Sequence[str], *, batch_size: int = 32
    ) -> dict[str, list[Answer]]: ...
    @torch.no_grad()
    def predict_all(
        self, rows: Row | Sequence[Row], tasks: Sequence[str], *, batch_size: int = 32
    ) -> dict[str, Answer] | dict[str, list[Answer]]:
        """Return the answers of several tasks to the same rows, by task, in the order of the rows.

        What is frozen below the banks of tasks is computed once for all of them: with banks in upper layers only, most of
        the backbone. Each answer is what the task alone gives, up to rounding (1e-6 in fp32).

        Args:
            rows: what all of the tasks were learned on, or one row by itself; see `predict`.
            tasks: learned tasks, or the name of one.
            batch_size: rows at a time, or rows times tasks where there are few rows.

        Returns:
            By task: an answer where one row was given by itself, else a list with one answer per row.

        Raises:
            InputError: if a task is not learned, or a row is not what it expects; if ``rows`` is a tuple of two texts, and
                some of the tasks were learned on pairs of texts and others not.
        """
        store, residents = self._residents.store, self._residents
        tasks = [tasks] if isinstance(tasks, str) else list(tasks)
        self._check_learned(tasks)
        rows, one = as_rows(rows, lambda: self._manifests(tasks))
        found: dict[str, list[Answer]] = {task: [] for task in tasks}
        if not rows:
            return found
        numbers = range(len(rows))
        asked = {task: ask(rows, numbers, store.manifest(task)) for task in tasks}
        manifests = {task: each.manifest for task, each in asked.items()}
        for group in like(manifests, residents.backbone_of, residents.held_banks.most):
            if len(group) == 1:
                found[group[0]] = self._alone(rows, numbers, group[0], batch_size)
            else:
                found |= self._all([asked[task] for task in group], batch_size)
        return {task: found[task][0] for task in tasks} if one else {task: found[task] for task in tasks}

    def _manifests(self, tasks: Sequence[str]) -> dict[str, Manifest]:
        return {task: self._residents.store.manifest(task) for task in tasks}

    def _all(self, asked: Sequence[Asked], batch_size: int) -> dict[str, list[Answer]]:
        """Return the answers of tasks to which the same rows are the same numbers."""
        residents = self._residents
        encoded = asked[0].encoded(residents)
        held = [self._held(each) for each in asked]
        backbone = held[0].backbone
        backbone.model.train(False)
        tasks = [Task(each.plan, each.bank) for each in held]
        found: dict[str, dict[int, Answer]] = {each.manifest.task: {} for each in asked}
        for batch in EvaluationLoader(encoded, batch_size, residents.pad_token_id, kind=asked[0].manifest.kind):
            with memory_told(", ".join(found), batch, f"batch_size (it is {batch_size})"):
                tensors = {name: tensor.to(backbone.model.device) for name, tensor in batch.items()}
                said = respond_to_all(backbone, tasks, tensors, batch_size, residents.stacks)
            positions = batch["index"].tolist()
            for each, outputs in zip(asked, said, strict=True):
                words = in_words(outputs, each.manifest, residents, encoded, positions)
                found[each.manifest.task] |= zip(positions, words, strict=True)
        return {task: [own[position] for position in range(len(own))] for task, own in found.items()}

    def _check_learned(self, tasks: Sequence[str]) -> None:
        store = self._residents.store
        unknown = [task for task in tasks if not isinstance(task, str) or not store.has(task)]
        if unknown:
            known = known_names(store.tasks, unknown[0])
            more = f" (nor are {len(unknown) - 1} others of those asked)" if len(unknown) > 1 else ""
            raise InputError(f"{not_learned(store, unknown[0])}{more}; learned are: {known}")

    def _alone(self, rows: Sequence[Row], numbers: Sequence[int], task: str, batch_size: int) -> list[Answer]:
        """Return the answers of one task to its rows."""
        store, residents = self._residents.store, self._residents
        # Rows are checked first, for to load a bank takes longer.
        asked, held = store.steadily(lambda: (ask(rows, numbers, store.manifest(task)), residents.held(task)), task)
        held.backbone.model.train(False)
        encoded = asked.encoded(residents)
        found: dict[int, Answer] = {}
        for batch in EvaluationLoader(encoded, batch_size, residents.pad_token_id, kind=asked.manifest.kind):
            with memory_told(task, batch, f"batch_size (it is {batch_size})"):
                tensors = {name: tensor.to(held.backbone.model.device) for name, tensor in batch.items()}
                said = respond(held.backbone, held.bank, held.plan, tensors, residents.tokenizer)
            positions = batch["index"].tolist()
            found |= zip(positions, in_words(said, asked.manifest, residents, encoded, positions), strict=True)
        return [found[position] for position in range(len(numbers))]

    def _mixed(self, rows: Sequence[Row], numbers: Mapping[str, list[int]], batch_size: int) -> dict[int, Answer]:
        """Return the answers of several tasks by the numbers of the rows."""
        store, residents = self._residents.store, self._residents
        asked = {task: ask(rows, own, store.manifest(task)) for task, own in numbers.items()}
        manifests = {task: each.manifest for task, each in asked.items()}
        found: dict[int, Answer] = {}
        for lane in lanes(manifests, residents.backbone_of, residents.held_banks.most):
            if len(lane) == 1:
                own = numbers[lane[0]]
                found |= zip(own, self._alone(rows, own, lane[0], batch_size), strict=True)
            else:
                found |= self._lane([asked[task] for task in lane], batch_size)
        return found

    def _lane(self, asked: Sequence[Asked], batch_size: int) -> dict[int, Answer]:
        """Return the answers of tasks that share batches."""
        residents = self._residents
        parts = [each.encoded(residents) for each in asked]
        held = [self._held(each) for each in asked]
        backbone = held[0].backbone
        backbone.model.train(False)
        kinds: dict[Hashable, int] = {}
        kind_of = [kinds.setdefault(residents.stacks.kind(each.bank), len(kinds)) for each in held]
        together = joined(parts)
        task_N = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        first_N = np.repeat(np.cumsum([0, *map(len, parts[:-1])]), [len(part) for part in parts])
        found: dict[int, Answer] = {}
        for rows, whose in batches(together.lengths, task_N, kind_of, batch_size):
            batch = collate(together, rows, residents.pad_token_id, kind=asked[0].manifest.kind, train=False)
            shares = [Part(held[task].plan, held[task].bank, count) for task, count in whose]
            with memory_told(_names(asked, whose), batch, f"batch_size (it is {batch_size})"):
                tensors = {name: tensor.to(backbone.model.device) for name, tensor in batch.items()}
                said = respond_together(backbone, shares, tensors, residents.stacks)
            positions = np.split((rows - first_N[rows]), np.cumsum([count for _, count in whose])[:-1])
            for (task, _), own, outputs in zip(whose, positions, said, strict=True):
                found |= self._numbered(asked[task], parts[task], outputs, own.tolist())
        return found

    def _numbered(
        self, asked: Asked, encoded: TokenisedRows, outputs: torch.Tensor, positions: list[int]
    ) -> dict[int, Answer]:
        words = in_words(outputs, asked.manifest, self._residents, encoded, positions)
        return {asked.numbers[position]: word for position, word in zip(positions, words, strict=True)}

    def _held(self, asked: Asked) -> Held:
        """Return a task's bank, the one that its rows were prepared for."""
        store, task = self._residents.store, asked.manifest.task
        now, held = store.steadily(lambda: (store.manifest(task), self._residents.held(task)), task)
        if now.seal != asked.manifest.seal:
            raise StoreError(
                f"task {task!r} was replaced in {store.folder} while its rows were being prepared: ask again."
            )
        return held


def _names(asked: Sequence[Asked], whose: Sequence[tuple[int, int]]) -> str:
    names = [asked[task].manifest.task for task, _ in whose]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
