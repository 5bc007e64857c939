"""An encoded split: the inputs and labels or targets of its rows as flat arrays.

A list of Python lists takes about 36 bytes per token and is slow to pad; one ``int32`` array takes 4, and a row is a slice.
Images are one array, already in the backbone's input size.

Shape legend: N rows, T tokens in all rows together, S target tokens in all rows, C labels, A options of all rows, O tokens of
all options, Q sequences of all rows, U tokens of all sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from continual_petl.kind import IGNORED as IGNORED


class TokenisedRow(NamedTuple):
    """One row: views into the flat arrays, not copies."""

    ids: NDArray[np.int32]
    token_types: NDArray[np.int8] | None
    label: Any
    """A number; an array for multilabel and token-classification."""
    target_ids: NDArray[np.int32] | None = None


class Texts(NamedTuple):
    """The texts that are needed to score predicted texts."""

    references: tuple[Any, ...]
    """The uncut target texts; for kinds that extract, all right answers of each row. Empty for rows to predict."""
    sources: tuple[str, ...] | None = None
    """The uncut sources; for a conversation, the last user message."""
    places: tuple[NDArray[np.int32], ...] | None = None
    """For kinds that extract, where each token of a source begins and ends in it, ``(tokens, 2)``."""

    def take(self, numbers: Sequence[int]) -> Texts:
        """Return the texts of the given rows, in the given order."""
        sources = None if self.sources is None else tuple(self.sources[row] for row in numbers)
        places = None if self.places is None else tuple(self.places[row] for row in numbers)
        return Texts(tuple(self.references[row] for row in numbers if self.references), sources, places)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sequences:
    """What the backbone reads of each row, for kinds that read a row several times.

    Shape:
        ``ids``, ``types`` and ``places`` ``(U,)``; ``offsets`` ``(Q + 1,)``; ``starts`` ``(N + 1,)``; ``labels`` ``(Q, 2)``.
    """

    ids: NDArray[np.int32]
    """Token ids of all sequences, with special tokens and without padding."""
    offsets: NDArray[np.int64]
    """Sequence ``j`` of all sequences, row after row, is ``ids[offsets[j]:offsets[j + 1]]``."""
    starts: NDArray[np.int64]
    """The sequences of row ``i`` are those from ``starts[i]`` to ``starts[i + 1]``."""
    types: NDArray[np.int8] | None = None
    """As ``TokenisedRows.token_types``."""
    places: NDArray[np.int32] | None = None
    """For kinds that extract, which token of the row's source a token is; -1 for all others."""
    labels: NDArray[np.int64] | None = None
    """The label of each sequence, if sequences have labels of their own."""

    def take(self, rows: NDArray[np.int64]) -> Sequences:
        """Return the sequences of the given rows, in the given order."""
        own, starts = spans_of(self.starts, rows)
        tokens, offsets = spans_of(self.offsets, own)
        return Sequences(
            ids=self.ids[tokens],
            offsets=offsets,
            starts=starts,
            types=None if self.types is None else self.types[tokens],
            places=None if self.places is None else self.places[tokens],
            labels=None if self.labels is None else self.labels[own],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenisedRows:
    """A split, ready to be padded into batches.

    Shape:
        ``ids``, ``token_types`` and ``first_piece`` ``(T,)``, ``offsets`` ``(N + 1,)``, ``labels`` as below,
        ``target_ids`` ``(S,)``, ``target_offsets`` ``(N + 1,)``, ``option_ids`` ``(O,)``, ``option_offsets`` ``(A + 1,)``,
        ``pixels`` ``(N, 3, H, W)``, ``truncated`` and ``targets_truncated`` ``(N,)``.
    """

    ids: NDArray[np.int32]
    """Token ids of all rows, one after the other, with special tokens and without padding; empty for images."""
    offsets: NDArray[np.int64]
    """Row ``i`` is ``ids[offsets[i]:offsets[i + 1]]``."""
    token_types: NDArray[np.int8] | None
    """Which of the two texts a token belongs to; ``None`` if the tokenizer returns no token types."""
    labels: NDArray[np.int64] | NDArray[np.float32] | NDArray[np.float64] | None
    """Class indices (int64, ``(N,)``), numbers (float64, ``(N,)``), multilabel (float32 0 or 1, ``(N, C)``) or tags
    (int64, ``(T,)``, -100 on special tokens and all but the first piece of a word). For targets among options, the index of
    the option (int64, ``(N,)``). ``None`` for rows without labels and for answers that are texts."""
    truncated: NDArray[np.bool_] | None = None
    """Which rows were longer than ``max_length`` and lost input tokens, ``(N,)``; ``None`` if none can."""
    targets_truncated: NDArray[np.bool_] | None = None
    """Which targets lost tokens, ``(N,)``; ``None`` without targets that are texts."""
    first_piece: NDArray[np.bool_] | None = None
    """For token-classification, marks the tokens that begin a word, at which the word's tag is predicted."""
    target_ids: NDArray[np.int32] | None = None
    """Token ids of all targets, with the end token if the tokenizer has one; ``None`` without targets."""
    target_offsets: NDArray[np.int64] | None = None
    """Target ``i`` is ``target_ids[target_offsets[i]:target_offsets[i + 1]]``."""
    texts: Texts | None = None
    """The texts that are needed to score predictions."""
    learned: NDArray[np.bool_] | None = None
    """For conversations, marks the source's tokens that are learned too; ``(T,)``."""
    option_ids: NDArray[np.int32] | None = None
    """Token ids of all options of all rows, each as a target; ``None`` for tasks that do not choose by likelihood."""
    option_offsets: NDArray[np.int64] | None = None
    """Option ``j`` of all options, row after row, is ``option_ids[option_offsets[j]:option_offsets[j + 1]]``."""
    option_texts: tuple[tuple[str, ...], ...] | None = None
    """The options of each row, if they are not the same for the whole task."""
    sequences: Sequences | None = None
    """What the backbone reads, if it reads a row several times; ``ids`` are then what rows are compared by."""
    pixels: NDArray[np.float32] | None = None
    """The images in the backbone's format."""

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of input tokens of each row, ``(N,)``; 0 for images."""
        return np.diff(self.offsets)

    @property
    def target_lengths(self) -> NDArray[np.int64]:
        """Number of target tokens of each row, ``(N,)``; 0 without targets."""
        return np.zeros(len(self), dtype=np.int64) if self.target_offsets is None else np.diff(self.target_offsets)

    def is_truncated(self, number: int) -> bool:
        """Return whether a row lost input tokens."""
        return self.truncated is not None and bool(self.truncated[number])

    @property
    def num_truncated(self) -> int:
        """Number of rows that lost input tokens."""
        return 0 if self.truncated is None else int(self.truncated.sum())

    @property
    def num_targets_truncated(self) -> int:
        """Number of targets that lost tokens."""
        return 0 if self.targets_truncated is None else int(self.targets_truncated.sum())

    def sums(self, of_tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum of the numbers ``(T,)`` over the tokens of every row, ``(N,)``."""
        row_of_each = np.repeat(np.arange(len(self)), self.lengths)
        return np.bincount(row_of_each, weights=of_tokens, minlength=len(self)).astype(np.float64)

    def places_of_words(self, number: int) -> NDArray[np.int64]:
        """Return the token positions where the words of a row start; a word's tag is read there."""
        assert self.first_piece is not None
        return np.flatnonzero(self.first_piece[self.offsets[number] : self.offsets[number + 1]])

    @property
    def option_starts(self) -> NDArray[np.int64]:
        """Where the options of each row begin among all options, and where the options of the last row end, ``(N + 1,)``."""
        assert self.option_offsets is not None
        if self.option_texts is not None:
            return offsets_of(map(len, self.option_texts))
        return np.arange(len(self) + 1) * ((len(self.option_offsets) - 1) // max(1, len(self)))

    def take(self, numbers: Sequence[int]) -> TokenisedRows:
        """Return some of the rows, in the given order."""
        rows = np.asarray(numbers, dtype=np.int64)
        tokens, offsets = spans_of(self.offsets, rows)
        targets: dict[str, Any] = {}
        if self.target_ids is not None and self.target_offsets is not None:
            own, targets["target_offsets"] = spans_of(self.target_offsets, rows)
            targets["target_ids"] = self.target_ids[own]
            targets["targets_truncated"] = None if self.targets_truncated is None else self.targets_truncated[rows]
        if self.option_ids is not None and self.option_offsets is not None:
            options, _ = spans_of(self.option_starts, rows)
            own, targets["option_offsets"] = spans_of(self.option_offsets, options)
            targets["option_ids"] = self.option_ids[own]
        if self.option_texts is not None:
            targets["option_texts"] = tuple(self.option_texts[row] for row in rows)
        per_token = self.first_piece is not None
        return TokenisedRows(
            ids=self.ids[tokens],
            offsets=offsets,
            token_types=None if self.token_types is None else self.token_types[tokens],
            labels=None if self.labels is None else self.labels[tokens if per_token else rows],
            truncated=None if self.truncated is None else self.truncated[rows],
            first_piece=None if self.first_piece is None else self.first_piece[tokens],
            learned=None if self.learned is None else self.learned[tokens],
            texts=None if self.texts is None else self.texts.take(rows.tolist()),
            pixels=None if self.pixels is None else self.pixels[rows],
            sequences=None if self.sequences is None else self.sequences.take(rows),
            **targets,
        )

    def row(self, index: int) -> TokenisedRow:
        """Return row ``index``.

        Raises:
            IndexError: if there is no such row.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)} rows")
        span = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
        label: Any = None
        if self.labels is not None:
            label = self.labels[span] if self.first_piece is not None else self.labels[index]
            label = label.item() if label.ndim == 0 else label
        target = None
        if self.target_ids is not None and self.target_offsets is not None:
            target = self.target_ids[self.target_offsets[index] : self.target_offsets[index + 1]]
        return TokenisedRow(self.ids[span], None if self.token_types is None else self.token_types[span], label, target)


def spans_of(offsets: NDArray[np.int64], rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the positions of the given rows' tokens in the flat array, and the offsets of these rows in the selection."""
    spans = [np.arange(offsets[row], offsets[row + 1]) for row in rows]
    return np.concatenate([np.zeros(0, dtype=np.int64), *spans]), offsets_of(len(span) for span in spans)


def offsets_of(lengths: Iterable[int]) -> NDArray[np.int64]:
    """Return where rows of these lengths begin in a flat array, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(np.fromiter(lengths, dtype=np.int64))]).astype(np.int64)
