"""Encode rows of any kind of task: the single entry point to the tokenizer and image preprocessing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from continual_petl.kind import find_kind
from continual_petl.streams.encoding.cache_files import CacheFiles
from continual_petl.streams.encoding.image_processing import ImageProcessing
from continual_petl.streams.encoding.rows import TokenisedRows
from continual_petl.streams.schema.chat_spec import ResolvedChat


def encode_rows(
    kind: str,
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
    settings: Mapping[str, Any] | None = None,
    where: str = "rows",
    cache: CacheFiles | None = None,
) -> TokenisedRows:
    """Encode checked rows, with their labels or targets, or without for prediction.

    Args:
        kind: name of the kind of the task that the rows belong to.
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
        settings: the settings of the task's kind.
        where: names the rows in messages.
        cache: where token ids of large splits are cached; None disables the cache.

    Raises:
        InputError: if the tokenizer, the preprocessing or a length does not fit the kind, or a row cannot be used.
        ValueError: if the tokenizer or the preprocessing that the kind needs is missing.
    """
    return find_kind(kind).encode(  # type: ignore[no-any-return]
        inputs,
        pairs=pairs,
        answers=answers,
        tokenizer=tokenizer,
        images=images,
        max_length=max_length,
        max_target_length=max_target_length,
        chat=chat,
        options=options,
        row_options=row_options,
        settings=settings,
        where=where,
        cache=cache,
    )
