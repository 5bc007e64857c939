"""Answers from learned banks: rows of one task in; labels, numbers, tags or texts out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from continual_petl.errors import InputError
from continual_petl.heads.words import Answer, answers, tags
from continual_petl.learner.generate import decode
from continual_petl.learner.memory import memory_told
from continual_petl.learner.respond import places_of_words, respond
from continual_petl.store.manifest import Manifest
from continual_petl.store.residents import Residents
from continual_petl.streams.batches.loaders import EvaluationLoader
from continual_petl.streams.encoding.encode import encode_rows
from continual_petl.streams.encoding.tokenise import TokenisedRows

Row = Any
"""A text, or a pair of texts; for token-classification a list of words, or a text that is split at its spaces; for
image-classification what its data may hold: a path, a PIL image, an array, or bytes in a mapping."""


class Predictor:
    """Answer rows with the banks of a run.

    Args:
        residents: the run's backbone and banks.
    """

    def __init__(self, residents: Residents) -> None:
        self._residents = residents

    @torch.no_grad()
    def predict(self, rows: Sequence[Row], task: str, *, batch_size: int = 32) -> list[Answer]:
        """Return one answer per row, in order.

        Args:
            rows: what the task was learned on: texts; pairs of texts; lists of words (or texts, split at their spaces);
                images.
            task: the learned task that answers.
            batch_size: rows at a time.

        Raises:
            InputError: if the task is not learned, or a row is not what it expects.
        """
        store = self._residents.store
        if not store.has(task):
            known = ", ".join(store.tasks) or "none"
            raise InputError(f"task {task!r} is not learned in {store.folder}; learned are: {known}")
        if not rows:
            return []
        # Rows are checked first, for to load a bank takes longer.
        manifest, (inputs, pairs), held = store.steadily(
            lambda: (m := store.manifest(task), _checked(rows, m), self._residents.held(task)), task
        )
        held.backbone.model.train(False)
        # The very way from a row to tensors that the task was learned and measured in, padding included.
        encoded = encode_rows(
            manifest.kind,
            inputs,
            pairs=pairs,
            tokenizer=self._residents.tokenizer,
            max_length=manifest.max_length,
            max_target_length=manifest.max_target_length,
            images=self._residents.images,
            where=f"task {task!r}, rows to answer",
        )
        if encoded.first_piece is not None:
            _check_all_seen(task, inputs, encoded, manifest.max_length)
        found: dict[int, Answer] = {}
        for batch in EvaluationLoader(encoded, batch_size, self._residents.pad_token_id, kind=manifest.kind):
            with memory_told(task, batch, f"batch_size (it is {batch_size})"):
                tensors = {name: tensor.to(held.backbone.model.device) for name, tensor in batch.items()}
                said = respond(held.backbone, held.bank, held.plan, tensors, self._residents.tokenizer)
            numbers = batch["index"].tolist()
            if isinstance(said, list):
                assert self._residents.tokenizer is not None
                texts = decode(self._residents.tokenizer, said)
                words = [Answer(value=text, probabilities=None) for text in texts]
            elif encoded.first_piece is not None:
                assert manifest.labels is not None
                kept = [row[places_of_words(encoded, number)] for number, row in zip(numbers, said.cpu(), strict=True)]
                words = tags(manifest.labels, kept)
            else:
                words = answers(manifest.kind, manifest.labels, said.cpu())
            found |= zip(numbers, words, strict=True)
        return [found[number] for number in range(len(rows))]


def _checked(rows: Sequence[Row], manifest: Manifest) -> tuple[list[Any], list[str] | None]:
    """Return what goes in with each row and its pair, or raise `InputError` naming the first row that is something else."""
    task = manifest.task
    for number, row in enumerate(rows, 1):
        wanted = _wanted(row, manifest)
        if wanted is not None:
            raise InputError(f"task {task!r}: row {number} is {_shown(row)}; this task was learned on rows of {wanted}")
    if manifest.pair:
        return [row[0] for row in rows], [row[1] for row in rows]
    if manifest.kind == "token-classification":
        return [row.split() if isinstance(row, str) else list(row) for row in rows], None
    return list(rows), None


def _wanted(row: Row, manifest: Manifest) -> str | None:
    """Return what a row should be, or None if it is that."""
    if manifest.kind == "image-classification":
        texts = isinstance(row, tuple)
        return "one image: a path, a PIL image, an array or a mapping with bytes" if texts else None
    if manifest.kind == "token-classification":
        words = row.split() if isinstance(row, str) else row
        good = isinstance(words, list | tuple) and bool(words) and all(isinstance(word, str) and word for word in words)
        return None if good else "words: a list of them, or a text with spaces between them"
    if manifest.pair:
        good = isinstance(row, tuple) and len(row) == 2 and all(isinstance(text, str) for text in row)
        return None if good else "a pair of texts"
    return None if isinstance(row, str) else "one text"


def _shown(row: Row) -> str:
    text = os.fspath(row) if isinstance(row, os.PathLike) else repr(row)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _check_all_seen(task: str, inputs: list[list[str]], rows: TokenisedRows, max_length: int) -> None:
    """Refuse a row of which the backbone does not see every word: the rest would silently have no tag."""
    for number, words in enumerate(inputs):
        seen = len(places_of_words(rows, number))
        if seen < len(words):
            raise InputError(
                f"task {task!r}: row {number + 1} has {len(words)} words, but only the first {seen} fit into the "
                f"{max_length} tokens that the backbone takes; divide the row, every word gets a tag then"
            )
