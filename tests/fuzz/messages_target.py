"""Conversations as a fuzz target: a JSON value, as in a column of messages, becomes tokens and targets, or is refused."""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

from continual_petl.errors import InputError
from continual_petl.kind import HowEncoded
from continual_petl.streams.encoding.chat_template import resolve_chat
from continual_petl.streams.encoding.tokenise_chats import tokenise_chats
from continual_petl.streams.schema.chat_spec import ChatSpec, ResolvedChat
from continual_petl.streams.sources.cells import from_cell
from continual_petl.streams.sources.checks import Cells, Where
from continual_petl.streams.sources.conversations import check_conversations, conversation, messages_of
from tests.chats import CHATML, CHATML_PLAIN, assistant, chat_tokenizer, user
from tests.fuzz.dictionary import json_tokens
from tests.fuzz.target import Target

_WHERE = Where(task="t", split="train", origin="chats.jsonl")


@cache
def _setting() -> tuple[Any, tuple[ResolvedChat, ...]]:
    tokenizer = chat_tokenizer()
    return tokenizer, tuple(resolve_chat(ChatSpec(template=text), tokenizer) for text in (CHATML, CHATML_PLAIN))


def check_messages(data: bytes) -> None:
    """Read a value for training and for prediction; check that accepted conversations fit the limits and have targets."""
    try:
        value = from_cell(json.loads(data))
    except (ValueError, RecursionError) as error:
        raise InputError("not JSON") from error
    tokenizer, chats = _setting()
    try:
        own = conversation(messages_of(value), None, ends="user")
    except ValueError:
        own = None
    if own is not None:
        _tokenise(own, None, tokenizer, chats[0])
    (source,), (answer,) = check_conversations(Cells(_WHERE, "messages", [(value,)]), None)
    for chat in chats:
        _tokenise(source, answer, tokenizer, chat)


def _tokenise(source: list[dict[str, str]], answer: str | None, tokenizer: Any, chat: ResolvedChat) -> None:
    answers = None if answer is None else [answer]
    how = HowEncoded(tokenizer=tokenizer, max_length=96, chat=chat, max_target_length=32)
    rows = tokenise_chats([source], answers, how)
    assert 0 < rows.lengths[0] <= 64
    if answer is not None:
        assert 0 < rows.target_lengths[0] <= 32
        assert rows.learned is not None
        assert len(rows.learned) == len(rows.ids)


def _seeds() -> list[bytes]:
    system = {"role": "system", "content": "be kind"}
    values: list[Any] = [
        [user("a"), assistant("b")],
        [system, user("a question"), assistant("the answer"), user("\U0001f600 and?"), assistant("\u4e2d <|im_end|>")],
        [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "weight": None}],
        [user("z" * 300), assistant("y" * 300)],
        [user("a"), assistant("b")] * 30,
        json.dumps([user("a"), assistant("b")]),
    ]
    return [json.dumps(value).encode() for value in values]


_ROLES = ("system", "user", "assistant", "human", "gpt", "tool", "", None, 3, ["user"])
_CONTENTS: tuple[Any, ...] = (
    "a",
    "the answer ",
    "\n\nis",
    " ",
    "",
    "z" * 200,
    "\ud800",
    "<|im_end|>\n<|im_start|>system\n",
    None,
    7,
    [],
    {},
)


def _grammar(draw: Random) -> bytes:
    """Return messages, most of them valid and in the right order."""
    form = draw.choice([("role", "content")] * 3 + [("from", "value"), ("role", "value")])
    messages = []
    for number in range(draw.randrange(8)):
        odd = draw.random() < 0.1
        role = draw.choice(_ROLES) if odd else ("user", "assistant")[number % 2]
        usual = draw.choice((*_CONTENTS[:3], "z" * 200))
        messages.append({form[0]: role, form[1]: draw.choice(_CONTENTS) if odd else usual})
    return json.dumps(messages).encode()


def _tokens() -> list[bytes]:
    words = ("role", "content", "from", "value", "system", "user", "assistant", "human", "gpt", "tool", "tool_calls")
    marks = (b'{"role": "user", "content": "a"},', b"<|im_start|>", b"<|im_end|>", b"\\n", b"\\ud800", b"[[", b"{}")
    return [*json_tokens(), *(json.dumps(word).encode() for word in words), *marks]


MESSAGES = Target("messages", check_messages, (InputError,), _seeds, _tokens, _grammar)
