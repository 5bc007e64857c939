"""Tokenise conversations with a chat template; see `chat_encoder` for a single one.

The last assistant message is the target. The source is everything before it, including the generation prompt of the template:
this is what a bank is given in evaluation and prediction. In training, earlier assistant messages in the source are learned
too, unless ``loss_on`` is ``last``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from continual_petl.errors import InputError
from continual_petl.kind import HowEncoded
from continual_petl.streams.encoding.chat_encoder import ChatEncoder, EncodedChat, Ids
from continual_petl.streams.encoding.chat_template import UnusableChat
from continual_petl.streams.encoding.options import check_options, with_options
from continual_petl.streams.encoding.rows import Texts, TokenisedRows, offsets_of
from continual_petl.streams.encoding.tokenise import same_number
from continual_petl.streams.encoding.tokenise_sources import room_for
from continual_petl.streams.encoding.tokenizer_calls import check_fast, settings_kept
from continual_petl.streams.sources.checks import Where, row_in, show
from continual_petl.streams.sources.conversations import Message


def tokenise_chats(
    sources: Sequence[Sequence[Message]],
    answers: Sequence[str] | None,
    how: HowEncoded,
    row_options: Sequence[Sequence[str]] | None = None,
) -> TokenisedRows:
    """Tokenise a split of conversations.

    Args:
        sources: the messages of each row, without the last assistant message.
        answers: the last assistant message of each row, or ``None`` for prediction.
        how: source and target are each cut to their share of ``max_length``, see `room_for`; ``chat`` has the template and
            the tokens to learn.
        row_options: the texts to choose from in each row, if they are not the same.

    Raises:
        InputError: if a row cannot be rendered, or the assistant's tokens in it cannot be found exactly.
        ValueError: if there are not as many answers as sources.
    """
    tokenizer, options = how.tokenizer, how.options
    same_number("answers", answers, "sources", sources)
    check_fast(tokenizer)
    room, target_room = room_for("causal-lm", how.max_length, how.max_target_length)
    encoder = ChatEncoder(tokenizer, how.chat, room)
    rows: list[EncodedChat] = []
    unusable: list[tuple[int, str]] = []
    with settings_kept(tokenizer):
        for number, messages in enumerate(sources):
            try:
                texts = row_options[number] if row_options is not None else options or ()
                rows.append(encoder.row(messages, None if answers is None else answers[number], texts))
            except UnusableChat as error:
                unusable.append((number, f"{show(messages[-1]['content'])}: {error}"))
    _raise_unusable(how.where, unusable)
    targets = [row.target[:target_room] for row in rows]
    tokenised_rows = TokenisedRows(
        ids=_flat(row.source for row in rows),
        offsets=offsets_of(len(row.source) for row in rows),
        token_types=None,
        labels=None,
        truncated=np.array([row.is_cut for row in rows], dtype=np.bool_),
        targets_truncated=None
        if answers is None
        else np.array([len(row.target) > target_room for row in rows], np.bool_),
        target_ids=None if answers is None else _flat(targets),
        target_offsets=None if answers is None else offsets_of(map(len, targets)),
        texts=None if answers is None else Texts(tuple(answers)),
        learned=None if answers is None else np.concatenate([np.zeros(0, np.bool_), *(row.learned for row in rows)]),
    )
    if options is None and row_options is None:
        return tokenised_rows
    for number, row in enumerate(rows):
        if row_options is None:
            check_options(options or (), row.options, target_room)
        else:
            check_options(row_options[number], row.options, target_room, partial(row_in, how.where, number))
    return with_options(tokenised_rows, [row.options for row in rows], row_options)


def _flat(rows: Iterable[Ids]) -> NDArray[np.int32]:
    return np.fromiter(chain.from_iterable(rows), dtype=np.int32)


def _raise_unusable(where: Where | str, unusable: Sequence[tuple[int, str]]) -> None:
    """Raise `InputError` about rows that cannot be used, each with its number and the reason; return if there are none."""
    if not unusable:
        return
    (number, why), *others = unusable
    more = (
        f" {len(others)} more cannot be used, for this or another reason; the next is row {others[0][0] + 1}."
        if others
        else ""
    )
    raise InputError(f"{row_in(where, number)}, {why}.{more}")
