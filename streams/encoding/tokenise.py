"""Tokenise texts and words, once per split; for tasks that generate text, see `tokenise_sources`.

Pairs are truncated ``longest_first``, as in ``_truncate_seq_pair`` of the original BERT code; truncated rows are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from continual_petl.errors import InputError, counted
from continual_petl.streams.encoding.rows import IGNORED, offsets_of
from continual_petl.streams.encoding.rows import TokenisedRow as TokenisedRow
from continual_petl.streams.encoding.rows import TokenisedRows as TokenisedRows
from continual_petl.streams.encoding.tokenizer_calls import Encoded, ToEncode, check_fast, encode, glues_words
from continual_petl.streams.encoding.tokenizer_calls import padding_id as padding_id
from continual_petl.streams.sources.checks import Where, row_in, show


def tokenise(
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    labels: NDArray[np.int64] | NDArray[np.float32] | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> TokenisedRows:
    """Tokenise a split of texts.

    Args:
        texts: one text per row.
        pairs: the second text of each row, or ``None``.
        labels: encoded labels of the rows, or ``None``.
        tokenizer: a fast tokenizer.
        max_length: maximum tokens per row, special tokens included.

    Raises:
        InputError: if the tokenizer is not a fast one, or ``max_length`` leaves no room for text.
        ValueError: if ``pairs`` or ``labels`` have a different number of rows than ``texts``.
    """
    for name, other in (("pairs", pairs), ("labels", labels)):
        same_number(name, other, "texts", texts)
    check_room(tokenizer, max_length, pair=pairs is not None)
    types = "token_type_ids" in tokenizer.model_input_names
    return encode(tokenizer, ToEncode(texts, pairs, max_length, types=types)).as_rows(labels)


def tokenise_words(
    rows: Sequence[Sequence[str]],
    tags: Sequence[NDArray[np.int64]] | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    *,
    where: Where | str = "rows",
) -> TokenisedRows:
    """Tokenise a split whose rows are lists of words, with or without a tag per word.

    Args:
        rows: a list of words per row.
        tags: the index of each word's tag, or ``None``.
        tokenizer: a fast tokenizer; if it joins pre-split words without spaces, spaces are inserted.
        max_length: maximum tokens per row; truncated words lose their tags.
        where: names the rows in messages.

    Raises:
        InputError: if the tokenizer does not accept words, returns no tokens for a word, or ``max_length`` leaves no room.
        ValueError: if ``tags`` and ``rows`` have different lengths.
    """
    same_number("tags", tags, "rows", rows)
    check_room(tokenizer, max_length, pair=False)
    spaced = [[word if number == 0 else f" {word}" for number, word in enumerate(row)] for row in rows]
    types = "token_type_ids" in tokenizer.model_input_names
    try:
        given = ToEncode(spaced if glues_words(tokenizer) else rows, None, max_length, types=types, words=True)
        encoded = encode(tokenizer, given)
    except (AssertionError, NotImplementedError, TypeError, ValueError) as error:
        raise InputError(
            f"backbone: {type(tokenizer).__name__} does not take text that is split into words ({error}), as "
            "token-classification requires; choose another backbone, or load the tokenizer with add_prefix_space."
        ) from error
    assert encoded.words is not None
    before = np.concatenate([[-1], encoded.words[:-1]]) if len(encoded.words) else encoded.words
    before[encoded.offsets[:-1][np.diff(encoded.offsets) > 0]] = -1
    first_piece = (encoded.words >= 0) & (encoded.words != before)
    _check_nothing_vanished(rows, encoded, first_piece, where)
    labels = None if tags is None else _labels_of_pieces(tags, encoded, first_piece)
    return encoded.as_rows(labels, first_piece=first_piece)


def _labels_of_pieces(
    tags: Sequence[NDArray[np.int64]], encoded: Encoded, first_piece: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return a label for every token: its word's tag for the first piece of a word, `IGNORED` for the others."""
    assert encoded.words is not None
    flat = np.concatenate([np.asarray(row, dtype=np.int64) for row in tags]) if len(tags) else np.empty(0, np.int64)
    starts = offsets_of(len(row) for row in tags)[:-1]
    places = np.repeat(starts, np.diff(encoded.offsets)) + encoded.words
    labels = np.full(len(encoded.ids), IGNORED, dtype=np.int64)
    labels[first_piece] = flat[places[first_piece]]
    return labels


def same_number(name: str, other: Sequence[Any] | NDArray[Any] | None, than: str, rows: Sequence[Any]) -> None:
    """Check that a column has as many rows as another.

    Raises:
        ValueError: if the numbers of rows differ.
    """
    if other is not None and len(other) != len(rows):
        raise ValueError(f"{name} has {len(other)} rows, but {than} has {len(rows)}")


def check_room(tokenizer: PreTrainedTokenizerBase, max_length: int, *, pair: bool) -> None:
    """Check that ``max_length`` leaves room for text between the special tokens.

    Raises:
        InputError: if there is no room, or the tokenizer is not a fast one.
    """
    check_fast(tokenizer)
    num_special = tokenizer.num_special_tokens_to_add(pair=pair)
    if max_length <= num_special:
        raise InputError(
            f"backbone.max_length: got {max_length}, but this tokenizer adds {counted(num_special, 'special token')} "
            f"to each {'pair' if pair else 'text'}; use at least {num_special + 1}, usually 128."
        )


def _check_nothing_vanished(
    rows: Sequence[Sequence[str]], encoded: Encoded, first_piece: NDArray[np.bool_], where: Where | str
) -> None:
    """Check that every word that was not truncated has a token for its tag."""
    assert encoded.words is not None
    sums = np.concatenate([[0], np.cumsum(first_piece)])
    counts = sums[encoded.offsets[1:]] - sums[encoded.offsets[:-1]]
    for number, (row, count, cut) in enumerate(zip(rows, counts.tolist(), encoded.cut.tolist(), strict=True)):
        span = slice(int(encoded.offsets[number]), int(encoded.offsets[number + 1]))
        seen = encoded.words[span][first_piece[span]].tolist()
        # Truncation removes words at one end, depending on the tokenizer; none may be missing between two kept words.
        expected = range(seen[0], seen[-1] + 1) if cut and seen else range(0 if cut else len(row))
        if count < len(expected):
            gone = min(set(expected) - set(seen))
            raise InputError(
                f"{row_in(where, number)}: word {gone + 1}, {show(row[gone])}, gives no tokens with this tokenizer (it may "
                "consist of invisible characters), so it cannot be tagged; remove the word and its tag, or replace it."
            )


def check_not_empty(texts: Sequence[str], rows: TokenisedRows, where: Where | str) -> None:
    """Check that every row has a token; otherwise its prediction would be computed from padding.

    Raises:
        InputError: naming the first row without one.
    """
    for row in np.flatnonzero(rows.lengths == 0).tolist():
        raise InputError(
            f"{row_in(where, row)}: {show(texts[row])} gives no tokens with this tokenizer, which adds no special tokens, "
            "so there is nothing to predict from; write a text there, or remove the row."
        )
