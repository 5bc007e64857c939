"""Encodes options, the texts among which the most likely one is predicted; each row may have its own.

An option is encoded like a target, with its end token: its log-probability is that of generating this text and ending there.
For scoring, every row becomes one sequence per option.

Shape suffixes: N rows, B rows of a batch, K options (if rows have their own, the largest number of options of a row).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from continual_petl.errors import InputError
from continual_petl.streams.encoding.rows import TokenisedRows, offsets_of, spans_of


def with_options(
    rows: TokenisedRows,
    options_NK: Sequence[Sequence[NDArray[np.int32]]],
    texts: Sequence[Sequence[str]] | None = None,
) -> TokenisedRows:
    """Return rows with the tokens of each row's options, and with the texts of these options if each row has its own."""
    flat = [option for options in options_NK for option in options]
    return replace(
        rows,
        option_ids=np.concatenate([np.zeros(0, np.int32), *flat]).astype(np.int32),
        option_offsets=offsets_of(map(len, flat)),
        option_texts=None if texts is None else tuple(map(tuple, texts)),
    )


def one_per_option(rows: TokenisedRows, index_B: NDArray[np.int64]) -> TokenisedRows:
    """Return the given rows once per option, with the option as target: first all rows with their first option, and so on.

    A row with fewer options than others repeats its first option in the remaining places.

    Args:
        rows: rows with options.
        index_B: indices of the rows.
    """
    assert rows.option_ids is not None
    assert rows.option_offsets is not None
    starts_B, counts_B = rows.option_starts[index_B], np.diff(rows.option_starts)[index_B]
    places_K1 = np.arange(counts_B.max(initial=0))[:, None]
    options_KB = starts_B + np.where(places_K1 < counts_B, places_K1, 0)
    tokens, offsets = spans_of(rows.option_offsets, options_KB.ravel())
    sources = replace(rows, target_ids=None, target_offsets=None, option_ids=None, option_offsets=None, texts=None)
    sources = replace(sources, labels=None, learned=None, option_texts=None)
    again = sources.take(np.tile(index_B, len(options_KB)).tolist())
    return replace(again, target_ids=rows.option_ids[tokens], target_offsets=offsets)


def check_options(
    options: Sequence[str], tokens_K: Sequence[NDArray[np.int32]], room: int, row: Callable[[], str] | None = None
) -> None:
    """Raise `InputError` if an option would have to be cut, or if two options have the same tokens and thus equal scores.

    Args:
        options: the texts.
        tokens_K: the tokens of each.
        room: maximum tokens of a target.
        row: names the row for a message, if each row has its own options.
    """
    seen: dict[bytes, str] = {}
    for option, tokens in zip(options, tokens_K, strict=True):
        if len(tokens) > room:
            raise InputError(
                f"{_in(row)}options: {option!r:.80} has {len(tokens)} tokens with its end token, but a target has room for "
                f"{room} (max_target_length): use a larger max_target_length, or a shorter option."
            )
        if (other := seen.setdefault(tokens.tobytes(), option)) != option:
            raise InputError(
                f"{_in(row)}options: {other!r:.80} and {option!r:.80} have the same tokens with this tokenizer, so they "
                "always get the same score: write options that differ in more than unknown or invisible characters."
            )


def _in(row: Callable[[], str] | None) -> str:
    return "" if row is None else f"{row()}, "
