"""Notices on text that a bank does not see, does not learn or cannot predict.

A text is generated up to the end token, or up to ``generation.max_new_tokens`` tokens, and is what the tokenizer makes of
them: T5, for example, has no tokens for braces and line breaks. A target that is longer, that has fewer tokens than
``generation.min_new_tokens`` or an n-gram twice that ``generation.no_repeat_ngram_size`` allows once, that the tokenizer
writes in another way or that contains a text of ``generation.stop`` is never predicted exactly, not even by a perfect bank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from continual_petl.errors import counted
from continual_petl.kind_registry import kind_of
from continual_petl.streams.preparation.checked_rows import Checked
from continual_petl.streams.schema.stream_spec import TaskSpec
from continual_petl.streams.sources.checks import row_in, show

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from continual_petl.streams.encoding.rows import TokenisedRows

_LOOKED_AT = 1_000
"""Maximum number of targets of a split whose tokens are turned into text."""
_UNKNOWN = 0.1
"""The share of unknown tokens from which on a notice gives it: names and emoji alone stay below it."""


def truncated(task: TaskSpec, splits: Mapping[str, TokenisedRows], max_length: int) -> list[str]:
    """Return notices on how many rows and targets were truncated."""
    kind, notices = kind_of(task), []
    room, target_room = kind.rooms(max_length, task.max_target_length)
    rows_truncated = _listed({name: (rows.num_truncated, len(rows)) for name, rows in splits.items()})
    if rows_truncated:
        rest = kind.truncation_in_words(chats=task.reads_chats)
        notices.append(
            f"task {task.name!r}: {rows_truncated} rows are longer than {room} tokens and were truncated; {rest}"
        )
    targets_truncated = _listed({name: (rows.num_targets_truncated, len(rows)) for name, rows in splits.items()})
    if targets_truncated:
        notices.append(
            f"task {task.name!r}: {targets_truncated} targets are longer than {target_room} tokens (max_target_length) and "
            "were truncated; the rest is not learned, but scores use the complete target."
        )
    return notices


def unknown(task: TaskSpec, splits: Mapping[str, TokenisedRows], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return a notice on the share of input tokens that stand for whatever the tokenizer does not know, or an empty list."""
    token, others = tokenizer.unk_token_id, {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    ends = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    if token is None or token in ends:  # as in GPT-2, which has a token for every byte
        return []
    shares = {}
    for name, rows in splits.items():
        num_words = int((~np.isin(rows.ids, [*others])).sum())
        shares[name] = int((rows.ids == token).sum()) / max(1, num_words)
    if max(shares.values()) < _UNKNOWN:
        return []
    listed = ", ".join(f"{share:.0%} of {name}" for name, share in shares.items() if share >= _UNKNOWN)
    return [
        f"task {task.name!r}: of the tokens of its inputs, {listed} are {tokenizer.unk_token}, which stands for all that the "
        "tokenizer does not know, such as words in another script, so a bank sees no difference between such words; choose a "
        "backbone that was trained on texts like these."
    ]


def not_generated(task: TaskSpec, splits: Mapping[str, TokenisedRows], end: int | None) -> list[str]:
    """Return notices on how many scored targets the settings of ``generation`` rule out.

    Args:
        task: a task that generates text.
        splits: its rows; those of train are not looked at.
        end: the token that ends a text.
    """
    spec, notices = task.generation, []
    scored = {name: rows for name, rows in splits.items() if name != "train"}
    needed = {name: _up_to_the_end(rows, end) for name, rows in scored.items()}

    def counted_in(ruled_out: Mapping[str, NDArray[np.bool_]]) -> str:
        return _listed({name: (int(which.sum()), len(which)) for name, which in ruled_out.items()})

    if longer := counted_in({name: lengths > spec.max_new_tokens for name, lengths in needed.items()}):
        longest = max(int(lengths.max()) for lengths in needed.values())
        notices.append(
            f"task {task.name!r}: {longer} targets have more tokens than the {spec.max_new_tokens} that are generated for a "
            "row (generation.max_new_tokens), so they cannot be predicted completely, which lowers the scores and may change "
            f"which epoch is kept; the longest has {longest}."
        )
    # A text of `stop` ends a text whatever its number of tokens.
    if not spec.stop and (
        shorter := counted_in({name: lengths < spec.min_new_tokens for name, lengths in needed.items()})
    ):
        shortest = min(int(lengths.min()) for lengths in needed.values())
        notices.append(
            f"task {task.name!r}: {shorter} targets have fewer tokens than the {spec.min_new_tokens} that are at least "
            "generated for a row (generation.min_new_tokens), so they are never predicted exactly, which lowers the scores; "
            f"the shortest has {shortest}."
        )
    repeating = counted_in(
        {name: _repeats(rows, needed[name], spec.no_repeat_ngram_size) for name, rows in scored.items()}
    )
    if repeating:
        notices.append(
            f"task {task.name!r}: {repeating} targets have the same {counted(spec.no_repeat_ngram_size, 'token')} in a row "
            "more than once, which is never generated (generation.no_repeat_ngram_size), so they are never predicted "
            "exactly, which lowers the scores."
        )
    return notices


def written_otherwise(
    task: TaskSpec,
    splits: Mapping[str, TokenisedRows],
    checked: Mapping[str, Checked],
    tokenizer: PreTrainedTokenizerBase,
    end: int | None,
    max_length: int,
) -> list[str]:
    """Return a remark on scored targets that the tokenizer does not write as they are, or an empty list.

    Args:
        task: a task that generates text.
        splits: its rows; those of train are not looked at.
        checked: the same rows before they were encoded.
        tokenizer: the tokenizer.
        end: the token that ends a text.
        max_length: maximum tokens per row.
    """
    _, room = kind_of(task).rooms(max_length, task.max_target_length)
    counts: dict[str, tuple[int, int]] = {}
    first = ""
    for name, rows in splits.items():
        if name == "train" or rows.target_ids is None or rows.target_offsets is None:
            continue
        whole = np.flatnonzero(rows.target_lengths < room)[:_LOOKED_AT]
        if not whole.size:  # of no rows, transformers decodes one empty text
            continue
        starts, lengths = rows.target_offsets[whole], _up_to_the_end(rows, end)[whole]
        ids = [rows.target_ids[start : start + length].tolist() for start, length in zip(starts, lengths, strict=True)]
        changed = 0
        for row, text in zip(whole.tolist(), tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
            target = checked[name].answers[row]
            for stop in task.generation.stop:
                text = text.partition(stop)[0]
            if text.strip() != target.strip():
                changed += 1
                first = first or f"{row_in(checked[name].where, row)}, {show(target)}, becomes {show(text.strip())}"
        counts[name] = changed, len(whole)
    if not first:
        return []
    return [
        f"task {task.name!r}: {_listed(counts)} targets cannot be predicted exactly, because a generated text is what the "
        f"tokenizer makes of its tokens, up to the first text of generation.stop: {first}."
    ]


def _up_to_the_end(rows: TokenisedRows, end: int | None) -> NDArray[np.int64]:
    """Return the number of tokens of each target before its first end token, ``(N,)``."""
    if rows.target_ids is None or rows.target_offsets is None:
        return rows.target_lengths
    starts, stops = rows.target_offsets[:-1], rows.target_offsets[1:]
    ends = np.append(np.flatnonzero(rows.target_ids == (-1 if end is None else end)), len(rows.target_ids))
    needed: NDArray[np.int64] = np.minimum(ends[np.searchsorted(ends, starts)], stops) - starts
    return needed


def _repeats(rows: TokenisedRows, lengths: NDArray[np.int64], size: int) -> NDArray[np.bool_]:
    """Return which targets, of as many tokens as ``lengths`` says, have the same ``size`` tokens in a row twice, ``(N,)``."""
    found = np.zeros(len(rows), np.bool_)
    if not size or rows.target_ids is None or rows.target_offsets is None:
        return found
    for row, (start, length) in enumerate(zip(rows.target_offsets[:-1], lengths, strict=True)):
        ids = rows.target_ids[start : start + length].tolist()
        grams = [*zip(*(ids[shift:] for shift in range(size)), strict=False)]
        found[row] = len({*grams}) < len(grams)
    return found


def _listed(counts: Mapping[str, tuple[int, int]]) -> str:
    return ", ".join(f"{count} of {total} {name}" for name, (count, total) in counts.items() if count)
