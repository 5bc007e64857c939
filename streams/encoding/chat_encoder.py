"""Encodes one conversation with a chat template: which messages fit, and which tokens are learned.

The tokens of the assistant are those that the template marks with ``{% generation %}``, found by transformers'
``apply_chat_template(..., return_assistant_tokens_mask=True)``, as in TRL. For a template without marks, they are found by
prefixes: the messages before an assistant message, rendered with ``add_generation_prompt=True``, and the messages up to and
including it must both be prefixes of the whole rendered conversation, and end between two of its tokens. A conversation for
which neither method is exact is refused. If a token of the whole text spans the beginning of the last answer (such as two
line breaks), source and answer are tokenised separately, since in prediction a bank is given the source alone; TRL only
warns about such tokens.

A source that is too long loses its oldest turns, but not the system prompt; if the last message alone is too long, its end is
cut off.

Shape suffixes: W tokens of a conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from continual_petl.errors import counted
from continual_petl.streams.encoding.chat_template import WRITE_MARKS, UnusableChat, check_written, marked, render
from continual_petl.streams.schema.chat_spec import ResolvedChat
from continual_petl.streams.sources.conversations import Message

Ids = list[int]
_ELSEWHERE = (
    "the learned tokens of the last message do not begin where the chat template ends with add_generation_prompt, so "
    "a bank would learn to continue a text other than the one it is given in prediction. Copy the template to a "
    "file, change it so that they do begin there, and name the file under chat.template"
)


class EncodedChat(NamedTuple):
    """One encoded conversation."""

    source: Ids
    is_cut: bool
    """Whether the source lost turns, or the end of its last message."""
    target: Ids
    learned: NDArray[np.bool_]
    """Which tokens of the source are learned; empty without a target."""
    options: list[NDArray[np.int32]]


@dataclass(frozen=True)
class ChatEncoder:
    """Encodes conversations one at a time."""

    tokenizer: PreTrainedTokenizerBase
    chat: ResolvedChat
    room: int
    """Maximum tokens of a source."""

    def tokens(self, text: str) -> tuple[Ids, NDArray[np.int64]]:
        """Return the tokens of a text, and where each token begins and ends in the text, (2, W)."""
        found = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return list(found["input_ids"]), np.array(found["offset_mapping"], dtype=np.int64).reshape(-1, 2).T

    def row(self, messages: Sequence[Message], answer: str | None, options: Sequence[str]) -> EncodedChat:
        """Return an encoded conversation.

        Args:
            messages: the messages before the answer.
            answer: the answer, or ``None`` for prediction.
            options: other texts to encode in place of the answer.
        """
        kept, prompt, source = self.fitting(messages)

        def target(text: str) -> tuple[Ids, NDArray[np.bool_]]:
            return self.target([*kept, {"role": "assistant", "content": text}], prompt, source)

        learned, mask = ([], np.zeros(0, np.bool_)) if answer is None else target(answer)
        choices = [np.array(target(option)[0], dtype=np.int32) for option in options]
        return EncodedChat(source, kept != list(messages), learned, mask, choices)

    def fitting(self, messages: Sequence[Message]) -> tuple[list[Message], str, Ids]:
        """Return the messages that fit into a source, their text and its tokens; the oldest turns are dropped if needed."""
        kept = list(messages)
        first = int(kept[0]["role"] == "system")
        while True:
            text = render(self.tokenizer, self.chat, kept, prompt=True)
            ids, _ = self.tokens(text)
            if len(ids) <= self.room:
                return kept, text, ids
            after = [number for number, each in enumerate(kept) if number > first and each["role"] == "user"]
            if after:
                del kept[first : after[0]]
            else:
                kept[-1] = {**kept[-1], "content": self._shortened(kept[-1]["content"], len(ids))}

    def _shortened(self, content: str, num_tokens: int) -> str:
        """Cut from the end of a text the number of tokens by which the source exceeds its limit."""
        _, (_, ends) = self.tokens(content)
        left = len(ends) - (num_tokens - self.room)
        text = content[: ends[left - 1]] if left > 0 else ""
        if not text.strip() or text == content:
            raise UnusableChat(
                f"with the chat template, the system prompt and the last message have {num_tokens} tokens, of which "
                f"{len(ends)} are the message's own, but a source has room for {self.room}: write a shorter system prompt, "
                "or use a larger backbone.max_length or a smaller max_target_length"
            )
        return text

    def target(self, messages: Sequence[Message], prompt: str, source: Ids) -> tuple[Ids, NDArray[np.bool_]]:
        """Return the learned tokens that follow a source, and which tokens of the source are learned too.

        Args:
            messages: the conversation, which ends with an answer.
            prompt: the text before this answer.
            source: the tokens of ``prompt``.
        """
        text = render(self.tokenizer, self.chat, messages)
        check_written(messages[-1], text)
        whole, spans = self.tokens(text)
        mask_W = self._learned(messages, text, whole, spans)
        begin, end = len(prompt), int(np.flatnonzero(mask_W)[-1]) + 1 if mask_W.any() else 0
        num_same = next((n for n, (a, b) in enumerate(zip(source, whole, strict=False)) if a != b), len(source))
        after_W = spans[0] >= begin
        if (
            not text.startswith(prompt)
            or not mask_W[after_W][: end - len(whole) or None].all()
            or not mask_W[after_W].any()
        ):
            raise UnusableChat(_ELSEWHERE)
        target, mask = whole[num_same:end], mask_W[:num_same]
        if num_same < len(source):
            # A token of the whole text spans the border. The bank is given the source alone, so tokenise the rest separately.
            rest, _ = self.tokens(text[begin:])
            header_W, fill = mask_W[num_same:][spans[1][num_same:] <= begin], self.chat.loss_on == "all"
            target, mask = rest[: end - len(whole) or None], np.append(mask, np.full(len(source) - num_same, fill))
            same_text = self.tokenizer.decode([*source, *rest]) == self.tokenizer.decode(whole)
            if not same_text or rest[len(target) :] != whole[end:] or (header_W.any() and not fill):
                raise UnusableChat(_ELSEWHERE)
        if self.chat.end not in target:
            raise UnusableChat(
                "the {% generation %} block of the chat template ends before the token that ends an answer, so a bank would "
                f"never learn where an answer ends. {WRITE_MARKS}"
            )
        return target, mask

    def _learned(
        self, messages: Sequence[Message], text: str, whole: Ids, spans: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return which tokens of a conversation are learned, (W,)."""
        chat, (starts_W, ends_W) = self.chat, spans
        numbers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        if chat.loss_on == "all":
            return np.ones(len(whole), dtype=np.bool_)
        if chat.has_marks:
            mask_W = np.array(marked(self.tokenizer, chat, messages), dtype=np.bool_)
            begins = np.flatnonzero(mask_W & ~np.concatenate([[False], mask_W[:-1]]))
            if len(begins) != len(numbers):
                raise UnusableChat(
                    f"the {{% generation %}} blocks of the chat template mark {counted(len(begins), 'span')} of tokens in a "
                    f"conversation with {counted(len(numbers), 'assistant message')}; they must mark the text of every "
                    "assistant message and the token that ends it"
                )
            if chat.loss_on == "last":
                mask_W[: begins[-1]] = False
            return mask_W
        mask_W = np.zeros(len(whole), dtype=np.bool_)
        for number in numbers[-1:] if chat.loss_on == "last" else numbers:
            before = render(self.tokenizer, chat, messages[:number], prompt=True)
            upto = render(self.tokenizer, chat, messages[: number + 1])
            begin, end = len(before), len(upto)
            cut = any(((starts_W < place) & (ends_W > place)).any() for place in (begin, end))
            if not (upto.startswith(before) and text.startswith(upto)) or (cut and number != numbers[-1]):
                raise UnusableChat(
                    "the chat template has no {% generation %}, and what it writes before or for message "
                    f"{number + 1}, an assistant message, changes with the messages that follow, or shares a token "
                    f"with that message, so it is not certain which tokens are the assistant's. {WRITE_MARKS}"
                    + ("; or write loss_on: last" if chat.loss_on != "last" and len(numbers) > 1 else "")
                )
            mask_W |= (starts_W >= begin) & (ends_W <= end) & (ends_W > begin)
        return mask_W
