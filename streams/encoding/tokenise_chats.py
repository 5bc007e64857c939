"""Tokenise conversations with a chat template.

The last assistant message is the target, and everything before it, up to the beginning of the answer that the template writes
for generation, is the source: what a bank is given in evaluation and prediction. In training, earlier assistant messages in
the source are learned too, unless ``loss_on`` is ``last``.

The tokens of the assistant are those that the template marks with ``{% generation %}``, found by transformers'
``apply_chat_template(..., return_assistant_tokens_mask=True)``, as in TRL. For a template without marks, they are found by
prefixes: the rendering of the messages before an assistant message, with the beginning of an answer, and the rendering of the
messages up to it both have to be prefixes of the rendering of all messages, and to end between two tokens. A conversation for
which neither is exact is refused.

A source that is too long loses its oldest turns, but not the system prompt; if the last message alone is too long, its end is
cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from continual_petl.errors import InputError
from continual_petl.streams.encoding.chat_template import WRITE_MARKS, UnusableChat, marked, render
from continual_petl.streams.encoding.rows import TokenisedRows, offsets_of
from continual_petl.streams.encoding.tokenise import same_number
from continual_petl.streams.encoding.tokenise_sources import room_for
from continual_petl.streams.encoding.tokenizer_calls import check_fast, settings_kept
from continual_petl.streams.schema.chat_spec import ResolvedChat
from continual_petl.streams.sources.checks import show
from continual_petl.streams.sources.conversations import Message

Ids = list[int]


def tokenise_chats(
    sources: Sequence[Sequence[Message]],
    answers: Sequence[str] | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    *,
    chat: ResolvedChat,
    max_target_length: int | None = None,
    where: str = "rows",
) -> TokenisedRows:
    """Tokenise a split of conversations.

    Args:
        sources: the messages of each row, without the last one if it is of the assistant.
        answers: the last message of the assistant in each row, or ``None`` for prediction.
        tokenizer: a fast tokenizer.
        max_length: maximum tokens of a conversation; the last message is cut to its share of it, see `room_for`.
        chat: the template and the tokens to learn.
        max_target_length: maximum tokens of the last message of the assistant.
        where: which rows these are, for messages.

    Raises:
        InputError: if a row cannot be rendered, or its tokens of the assistant cannot be found exactly.
        ValueError: if there are not as many answers as sources.
    """
    same_number("answers", answers, "sources", sources)
    check_fast(tokenizer)
    room, target_room = room_for("causal-lm", max_length, max_target_length)
    encoder = _Encoder(tokenizer, chat, room)
    ids: list[Ids] = []
    targets: list[Ids] = []
    learned: list[NDArray[np.bool_]] = []
    num_cut = num_targets_cut = 0
    with settings_kept(tokenizer):
        for number, messages in enumerate(sources):
            try:
                kept, source = encoder.fitting(messages)
                if answers is not None:
                    whole, mask = encoder.learned([*kept, {"role": "assistant", "content": answers[number]}])
                    end = _end_of_target(source, whole, mask)
                    targets.append(whole[len(source) : end][:target_room])
                    learned.append(mask[: len(source)])
                    num_targets_cut += end - len(source) > target_room
            except UnusableChat as error:
                raise InputError(f"{where}, row {number + 1}, {show(messages[-1]['content'])}: {error}.") from error
            ids.append(source)
            num_cut += kept != list(messages)
    return TokenisedRows(
        ids=np.array([token for row in ids for token in row], dtype=np.int32),
        offsets=offsets_of(map(len, ids)),
        token_types=None,
        labels=None,
        num_truncated=num_cut,
        num_targets_truncated=num_targets_cut,
        target_ids=None if answers is None else np.array([token for row in targets for token in row], dtype=np.int32),
        target_offsets=None if answers is None else offsets_of(map(len, targets)),
        references=None if answers is None else tuple(answers),
        learned=None if answers is None else np.concatenate([np.zeros(0, np.bool_), *learned]),
    )


def first_row(tokenizer: PreTrainedTokenizerBase, chat: ResolvedChat, messages: Sequence[Message], answer: str) -> str:
    """Return the text that the template makes of a row.

    Raises:
        InputError: if it cannot be rendered.
    """
    try:
        return render(tokenizer, chat, [*messages, {"role": "assistant", "content": answer}])
    except UnusableChat as error:
        raise InputError(f"row 1: {error}.") from error


@dataclass(frozen=True)
class _Encoder:
    """Encodes one conversation after the other."""

    tokenizer: PreTrainedTokenizerBase
    chat: ResolvedChat
    room: int
    """Maximum tokens of a source."""

    def source(self, messages: Sequence[Message]) -> Ids:
        """Return the tokens before an answer."""
        text = render(self.tokenizer, self.chat, messages, prompt=True)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def fitting(self, messages: Sequence[Message]) -> tuple[list[Message], Ids]:
        """Return the messages that fit into a source, and their tokens: without the oldest turns, if need be."""
        kept = list(messages)
        first = int(kept[0]["role"] == "system")
        ids = self.source(kept)
        while len(ids) > self.room:
            after = [number for number, each in enumerate(kept) if number > first and each["role"] == "user"]
            if after:
                del kept[first : after[0]]
            else:
                kept[-1] = {**kept[-1], "content": self._shortened(kept[-1]["content"], len(ids))}
            ids = self.source(kept)
        return kept, ids

    def _shortened(self, content: str, num_tokens: int) -> str:
        """Return a text without as many tokens at its end as a source has too many."""
        spans = self.tokenizer(content, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        left = len(spans) - (num_tokens - self.room)
        text = content[: spans[left - 1][1]] if left > 0 else ""
        if not text.strip() or text == content:
            raise UnusableChat(
                f"the chat template makes {num_tokens} tokens of the system prompt and the last message, of which "
                f"{len(spans)} are of this message, and a source has room for {self.room}: write a shorter system prompt, "
                "or use a larger backbone.max_length or a smaller max_target_length"
            )
        return text

    def learned(self, messages: Sequence[Message]) -> tuple[Ids, NDArray[np.bool_]]:
        """Return the tokens of a conversation that ends with an answer, and which of them are learned."""
        chat = self.chat
        if chat.loss_on == "all":
            ids = list(self.tokenizer(render(self.tokenizer, chat, messages), add_special_tokens=False)["input_ids"])
            return ids, np.ones(len(ids), dtype=np.bool_)
        if not chat.has_marks:
            return self._by_prefixes(messages)
        ids, mask = marked(self.tokenizer, chat, messages)
        mask_W = np.array(mask, dtype=np.bool_)
        starts = np.flatnonzero(mask_W & ~np.concatenate([[False], mask_W[:-1]]))
        answers = sum(message["role"] == "assistant" for message in messages)
        if len(starts) != answers:
            raise UnusableChat(
                f"the {{% generation %}} of the chat template marks {len(starts)} stretches of tokens in a conversation with "
                f"{answers} messages of the assistant; it has to mark the text of each of them, and the token that ends it"
            )
        if chat.loss_on == "last":
            mask_W[: starts[-1]] = False
        return ids, mask_W

    def _by_prefixes(self, messages: Sequence[Message]) -> tuple[Ids, NDArray[np.bool_]]:
        text = render(self.tokenizer, self.chat, messages)
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        starts_W, ends_W = np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2).T
        mask_W = np.zeros(len(starts_W), dtype=np.bool_)
        numbers = [number for number, each in enumerate(messages) if each["role"] == "assistant"]
        for number in numbers[-1:] if self.chat.loss_on == "last" else numbers:
            before = render(self.tokenizer, self.chat, messages[:number], prompt=True)
            upto = render(self.tokenizer, self.chat, messages[: number + 1])
            begin, end = len(before), len(upto)
            cuts = ((starts_W < place) & (ends_W > place) for place in (begin, end))
            if not (upto.startswith(before) and text.startswith(upto)) or any(cut.any() for cut in cuts):
                raise UnusableChat(
                    "the chat template has no {% generation %}, and what it writes before or for message "
                    f"{number + 1}, of the assistant, changes with the messages that follow, so that it is not certain which "
                    f"tokens are the assistant's. {WRITE_MARKS}"
                    + ("; or write loss_on: last" if self.chat.loss_on != "last" and len(numbers) > 1 else "")
                )
            mask_W |= (starts_W >= begin) & (ends_W <= end) & (ends_W > begin)
        return list(encoded["input_ids"]), mask_W


def _end_of_target(source: Ids, whole: Ids, mask_W: NDArray[np.bool_]) -> int:
    """Return where the learned tokens of the last message end, once they are known to follow the source directly."""
    end = int(np.flatnonzero(mask_W)[-1]) + 1 if mask_W.any() else 0
    if whole[: len(source)] != source or end <= len(source) or not mask_W[len(source) : end].all():
        raise UnusableChat(
            "the learned tokens of the last message do not begin where the chat template ends with add_generation_prompt, so "
            "that a bank would learn to continue another text than it is given in prediction. Write a copy of the template "
            "to a file in which they do, and name it under chat.template; if the message begins with white space, remove that"
        )
    return end
