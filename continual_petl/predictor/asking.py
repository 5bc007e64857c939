"""From rows as people give them to numbers, for one task; and from what its bank says to answers in words."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from continual_petl.errors import InputError
from continual_petl.heads.words import Answer, answers, tags
from continual_petl.learner.generate import decode
from continual_petl.learner.respond import Said, places_of_words
from continual_petl.store.manifest import Manifest
from continual_petl.store.residents import Residents
from continual_petl.streams.encoding.encode import encode_rows
from continual_petl.streams.encoding.tokenise import TokenisedRows

Row = Any
"""A text, or a pair of texts; for token-classification a list of words, or a text that is split at its spaces; for
image-classification what its data may hold: a path, a PIL image, an array, or bytes in a mapping."""


@dataclass(frozen=True)
class Asked:
    """Checked rows for one task."""

    manifest: Manifest
    numbers: Sequence[int]
    """Which of all given rows they are, counted from 0."""
    inputs: list[Any]
    pairs: list[str] | None

    def encoded(self, residents: Residents) -> TokenisedRows:
        """Return the rows as numbers, in the very way in which the task was learned and measured, padding included.

        Raises:
            InputError: if a row cannot be used.
        """
        manifest, among = self.manifest, "" if list(self.numbers) == list(range(len(self.inputs))) else "its own "
        encoded = encode_rows(
            manifest.kind,
            self.inputs,
            pairs=self.pairs,
            tokenizer=residents.tokenizer,
            max_length=manifest.max_length,
            max_target_length=manifest.max_target_length,
            images=residents.images,
            where=f"task {manifest.task!r}, {among}rows to answer",
        )
        if encoded.first_piece is not None:
            self._check_all_seen(encoded)
        return encoded

    def _check_all_seen(self, rows: TokenisedRows) -> None:
        """Refuse a row of which the backbone does not see every word: the rest would silently have no tag."""
        for position, words in enumerate(self.inputs):
            seen = len(places_of_words(rows, position))
            if seen < len(words):
                raise InputError(
                    f"task {self.manifest.task!r}: row {self.numbers[position] + 1} has {len(words)} words, but only the "
                    f"first {seen} fit into the {self.manifest.max_length} tokens that the backbone takes; divide the row, "
                    "every word gets a tag then"
                )


def ask(rows: Sequence[Row], numbers: Sequence[int], manifest: Manifest) -> Asked:
    """Return the rows of a task, or raise `InputError` naming the first that is not what the task was learned on.

    Args:
        rows: all rows that were given.
        numbers: which of them the task is to answer.
        manifest: of the task.
    """
    own = [rows[number] for number in numbers]
    for number, row in zip(numbers, own, strict=True):
        wanted = _wanted(row, manifest)
        if wanted is not None:
            raise InputError(
                f"task {manifest.task!r}: row {number + 1} is {_shown(row)}; this task was learned on rows of {wanted}"
            )
    if manifest.pair:
        return Asked(manifest, numbers, [row[0] for row in own], [row[1] for row in own])
    if manifest.kind == "token-classification":
        own = [row.split() if isinstance(row, str) else list(row) for row in own]
    return Asked(manifest, numbers, own, None)


def in_words(
    said: Said, manifest: Manifest, residents: Residents, encoded: TokenisedRows, positions: Sequence[int]
) -> list[Answer]:
    """Return what a bank said to some rows in words.

    Args:
        said: of `respond`.
        manifest: of the task.
        residents: has the tokenizer.
        encoded: all rows of the task.
        positions: which of them were answered.
    """
    if isinstance(said, list):
        assert residents.tokenizer is not None
        assert manifest.generation is not None
        texts = decode(residents.tokenizer, said, manifest.generation.stop)
        return [Answer(value=text, probabilities=None) for text in texts]
    if encoded.first_piece is not None:
        assert manifest.labels is not None
        kept = [row[places_of_words(encoded, position)] for position, row in zip(positions, said.cpu(), strict=True)]
        return tags(manifest.labels, kept)
    return answers(manifest.kind, manifest.labels, said.cpu())


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
