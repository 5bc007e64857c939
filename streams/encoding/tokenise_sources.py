"""Tokenise sources and targets of seq2seq and causal-lm tasks.

In a causal-lm task, the target directly continues the source: the source has no closing special token, the target has no
opening one, and nothing is inserted between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from continual_petl.errors import InputError, counted
from continual_petl.kind import HowEncoded
from continual_petl.kind_registry import find_kind
from continual_petl.streams.encoding.options import check_options, with_options
from continual_petl.streams.encoding.rows import Texts, TokenisedRows
from continual_petl.streams.encoding.tokenise import check_room, same_number
from continual_petl.streams.encoding.tokenizer_calls import Encoded, ToEncode, encode
from continual_petl.streams.sources.checks import row_in

_NO_LIMIT = 1_000_000
TARGET_LENGTH = 128
"""Default maximum number of tokens in a target."""


def room_for(kind: str, max_length: int, max_target_length: int | None) -> tuple[int, int]:
    """Return how many tokens a source and a target may keep.

    In a causal-lm task, both share one row of ``max_length`` tokens; in a seq2seq task, each has its own row. The default of
    ``max_target_length`` is 128, or less if ``max_length`` is smaller (in a causal-lm task, at most half of it).

    Raises:
        InputError: if the targets leave no room for sources.
    """
    if not find_kind(kind).continues:
        return max_length, min(TARGET_LENGTH, max_length) if max_target_length is None else max_target_length
    target = min(TARGET_LENGTH, max_length // 2) if max_target_length is None else max_target_length
    if target >= max_length:
        raise InputError(
            f"max_target_length: got {target}, but source and target of a causal-lm share max_length {max_length}; use "
            f"at most {max_length - 1}, usually {max_length // 2}."
        )
    return max_length - target, target


def tokenise_sources(
    kind: str,
    sources: Sequence[str],
    targets: Sequence[str] | None,
    how: HowEncoded,
    row_options: Sequence[Sequence[str]] | None = None,
) -> TokenisedRows:
    """Tokenise a split whose targets are texts.

    Args:
        kind: name of the kind of the task.
        sources: one input text per row.
        targets: one output text per row, or ``None`` for prediction.
        how: its ``max_length`` is the maximum tokens of a source, or for causal-lm of source and target together, see
            :func:`room_for`; ``max_target_length`` counts the target's end token.
        row_options: the texts to choose from in each row, if they are not the same.

    Raises:
        InputError: if the tokenizer is not a fast one, or there is no room for text or for an option.
        ValueError: if there are not as many targets as sources.
    """
    tokenizer, options = how.tokenizer, how.options
    same_number("targets", targets, "sources", sources)
    source_room, target_room = room_for(kind, how.max_length, how.max_target_length)
    check_room(tokenizer, source_room, pair=False)
    continues = find_kind(kind).continues
    closing = num_closing(tokenizer) if continues else 0
    encoded = _shortened(encode(tokenizer, ToEncode(sources, None, source_room + closing)), closing)
    target = None if targets is None else _targets(targets, tokenizer, target_room, special=not continues)
    rows = encoded.as_rows(
        targets_truncated=None if target is None else target.cut,
        target_ids=None if target is None else target.ids,
        target_offsets=None if target is None else target.offsets,
        texts=None if targets is None else Texts(tuple(targets)),
    )
    if row_options is not None:
        return _with_row_options(rows, row_options, how, target_room, special=not continues)
    if options is None:
        return rows
    encoded_options = option_tokens(options, tokenizer, special=not continues)
    check_options(options, encoded_options, target_room)
    return with_options(rows, [encoded_options] * len(rows))


def _with_row_options(
    rows: TokenisedRows,
    row_options: Sequence[Sequence[str]],
    how: HowEncoded,
    room: int,
    *,
    special: bool,
) -> TokenisedRows:
    flat = [option for options in row_options for option in options]
    tokens = iter(option_tokens(flat, how.tokenizer, special=special) if flat else [])
    own = [[next(tokens) for _ in options] for options in row_options]
    for number, (options, encoded) in enumerate(zip(row_options, own, strict=True)):
        check_options(options, encoded, room, partial(row_in, how.where, number))
    return with_options(rows, own, row_options)


def option_tokens(
    options: Sequence[str], tokenizer: PreTrainedTokenizerBase, *, special: bool
) -> list[NDArray[np.int32]]:
    """Return the tokens of each option as a target.

    Args:
        options: the texts.
        tokenizer: a fast tokenizer.
        special: whether the tokenizer adds its special tokens, as for the targets of a seq2seq task.
    """
    targets = _targets(options, tokenizer, _NO_LIMIT, special=special)
    return [targets.ids[start:end] for start, end in pairwise(targets.offsets.tolist())]


def _targets(
    targets: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    room: int,
    *,
    special: bool,
) -> Encoded:
    end = None if adds_end(tokenizer, special=special) else tokenizer.eos_token_id
    needed = (tokenizer.num_special_tokens_to_add(pair=False) if special else 0) + (end is not None)
    if room <= needed:
        raise InputError(
            f"max_target_length: got {room}, but this tokenizer adds {counted(needed, 'special token')} to each "
            f"target; use at least {needed + 1}."
        )
    given = ToEncode(targets, None, room - (end is not None), special=special, target=True)
    encoded = encode(tokenizer, given)
    if end is None:
        return encoded
    offsets = encoded.offsets + np.arange(len(encoded.offsets))
    return replace(encoded, ids=np.insert(encoded.ids, encoded.offsets[1:], np.int32(end)), offsets=offsets)


def adds_end(tokenizer: PreTrainedTokenizerBase, *, special: bool) -> bool:
    """Return whether the tokenizer itself adds the end token to a target; mBART's puts it before the language code."""
    return tokenizer.eos_token_id in encode(tokenizer, ToEncode(["a"], None, 64, special=special, target=True)).ids


def num_closing(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the number of special tokens that the tokenizer adds after a text."""
    mask = tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
    return next((number for number, special in enumerate(reversed(mask)) if not special), 0)


def _shortened(encoded: Encoded, count: int) -> Encoded:
    """Remove the last ``count`` tokens of every row."""
    if count == 0:
        return encoded
    ends = encoded.offsets[1:]
    gone = (ends[:, None] - 1 - np.arange(count)).ravel()
    offsets = encoded.offsets - count * np.arange(len(encoded.offsets))
    return replace(encoded, ids=np.delete(encoded.ids, gone), offsets=offsets)
