"""Notices on text that a bank does not see, does not learn or cannot predict.

A text is generated up to the end token, or up to ``generation.max_new_tokens`` tokens, and is what the tokenizer makes of
them: T5, for example, has no tokens for braces and line breaks. A target that is longer, that the tokenizer writes in another
way or that contains a text of ``generation.stop`` is never predicted exactly, not even by a perfect bank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from continual_petl.kind_registry import kind_of
from continual_petl.streams.preparation.checked_rows import Checked
from continual_petl.streams.schema.stream_spec import TaskSpec
from continual_petl.streams.sources.checks import row_in, show

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from continual_petl.streams.encoding.rows import TokenisedRows

_LOOKED_AT = 1_000
"""Maximum number of targets of a split whose tokens are turned into text."""


def cut(task: TaskSpec, splits: Mapping[str, TokenisedRows], max_length: int) -> list[str]:
    """Return notices on how many rows and targets were truncated."""
    kind, notices = kind_of(task), []
    room, target_room = kind.rooms(max_length, task.max_target_length)
    rows_cut = _listed({name: (rows.num_truncated, len(rows)) for name, rows in splits.items()})
    if rows_cut:
        rest = kind.cut_in_words(chats=task.reads_chats)
        notices.append(f"task {task.name!r}: {rows_cut} rows are longer than {room} tokens and were cut; {rest}")
    targets_cut = _listed({name: (rows.num_targets_truncated, len(rows)) for name, rows in splits.items()})
    if targets_cut:
        notices.append(
            f"task {task.name!r}: {targets_cut} targets are longer than {target_room} tokens (max_target_length) and were "
            "cut; the part cut off is not learned, but scores use the complete target."
        )
    return notices


def not_generated(task: TaskSpec, splits: Mapping[str, TokenisedRows], end: int | None) -> list[str]:
    """Return a notice on how many scored targets have more tokens than are generated, or an empty list.

    Args:
        task: a task that generates text.
        splits: its rows; those of train are not looked at.
        end: the token that ends a text.
    """
    most = task.generation.max_new_tokens
    needed = {name: _up_to_the_end(rows, end) for name, rows in splits.items() if name != "train"}
    longer = _listed({name: (int((lengths > most).sum()), len(lengths)) for name, lengths in needed.items()})
    if not longer:
        return []
    longest = max(int(lengths.max()) for lengths in needed.values())
    return [
        f"task {task.name!r}: {longer} targets have more tokens than the {most} that are generated for a row "
        f"(generation.max_new_tokens), so they cannot be predicted completely, which lowers the scores and may change which "
        f"epoch is kept; the longest has {longest}."
    ]


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


def _listed(counts: Mapping[str, tuple[int, int]]) -> str:
    return ", ".join(f"{count} of {total} {name}" for name, (count, total) in counts.items() if count)
