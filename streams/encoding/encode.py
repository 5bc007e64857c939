"""Encode rows of any kind of task: the single entry point to the tokenizer and image preprocessing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from continual_petl.errors import InputError
from continual_petl.heads.kinds import Kind
from continual_petl.streams.encoding.cache_files import CacheFiles
from continual_petl.streams.encoding.image_processing import ImageProcessing
from continual_petl.streams.encoding.rows import TokenisedRows
from continual_petl.streams.encoding.tokenise import tokenise, tokenise_words
from continual_petl.streams.encoding.tokenise_chats import tokenise_chats
from continual_petl.streams.encoding.tokenise_sources import tokenise_sources
from continual_petl.streams.schema.chat_spec import ResolvedChat
from continual_petl.streams.sources.checks import show


def encode_rows(
    kind: Kind,
    inputs: Sequence[Any],
    *,
    pairs: Sequence[str] | None = None,
    answers: Any = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_length: int = 0,
    max_target_length: int | None = None,
    images: ImageProcessing | None = None,
    chat: ResolvedChat | None = None,
    options: Sequence[str] | None = None,
    row_options: Sequence[Sequence[str]] | None = None,
    where: str = "rows",
    cache: CacheFiles | None = None,
) -> TokenisedRows:
    """Encode checked rows, with their labels or targets, or without for prediction.

    Args:
        kind: the kind of the task that the rows belong to.
        inputs: texts, sources, conversations, lists of words or images, one per row; an empty list only checks the settings.
        pairs: the second text of each row, for a task on text pairs.
        answers: labels ``(N,)`` or ``(N, C)``, an array of tags per row, or target texts; ``None`` if there are none.
        tokenizer: the fast tokenizer of the backbone; not needed for images.
        max_length: maximum tokens per row.
        max_target_length: as in the task; it also limits the sources of a causal-lm task, so pass it for predictions too.
        images: the preprocessing of the backbone, for images.
        chat: the chat template, for conversations, which are lists of messages.
        options: the texts to choose from in a generative task, the same for every row.
        row_options: the texts to choose from in each row, if they are not the same.
        where: names the rows in messages.
        cache: where token ids of large splits are cached; None disables the cache.

    Raises:
        InputError: if the tokenizer, the preprocessing or a length does not fit the kind, or a row cannot be used.
        ValueError: if the tokenizer or the preprocessing that the kind needs is missing.
    """
    if kind == "image-classification":
        if images is None:
            raise ValueError("images need the preprocessing of the backbone: give images=image_processing(...)")
        return TokenisedRows(
            ids=np.empty(0, dtype=np.int32),
            offsets=np.zeros(len(inputs) + 1, dtype=np.int64),
            token_types=None,
            labels=answers,
            pixels=images(inputs),
        )
    if tokenizer is None:
        raise ValueError(f"a {kind} needs the tokenizer of the backbone")
    targets: dict[str, Any] = {"max_target_length": max_target_length, "options": options, "row_options": row_options}
    if chat is not None:
        return tokenise_chats(inputs, answers, tokenizer, max_length, chat=chat, where=where, **targets)
    if kind == "token-classification":
        return tokenise_words(inputs, answers, tokenizer, max_length, where=where, cache=cache)
    if kind == "seq2seq" or kind == "causal-lm":
        rows = tokenise_sources(inputs, answers, tokenizer, max_length, kind=kind, cache=cache, **targets)
    else:
        rows = tokenise(inputs, pairs, answers, tokenizer, max_length, cache=cache)
    _check_not_empty(inputs, rows, where)
    return rows


def _check_not_empty(texts: Sequence[str], rows: TokenisedRows, where: str) -> None:
    """Check that every row has a token; otherwise its prediction would be computed from padding."""
    for row in np.flatnonzero(rows.lengths == 0).tolist():
        raise InputError(
            f"{where}, row {row + 1}: {show(texts[row])} gives no tokens with this tokenizer, which adds no special tokens, "
            "so there is nothing to predict from; write a text there, or remove the row."
        )
