"""Check conversations in the formats of other projects, and convert them to lists of messages with role and content.

Accepts TRL's and OpenAI's messages (role, content), ShareGPT's (from, value, with human and gpt), and plain texts:
each becomes a user message or, as a target, an assistant message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from continual_petl.streams.sources.cells import FaultyJson, from_cell
from continual_petl.streams.sources.checks import Cells, show

Message = dict[str, str]
Role = Literal["user", "assistant"]

ROLES = ("system", "user", "assistant")
MOST_MESSAGES = 500
"""Maximum number of messages in a conversation: rendering time may grow with the square of their number."""
_FORMS = (("role", "content"), ("from", "value"))
_SHARE_GPT = {"human": "user", "gpt": "assistant"}
RULE = (
    "A conversation is a list of messages {role, content}, or {from, value}: an optional system "
    "message, then a user message, and an assistant message at the end; repair or remove these rows, or name another column."
)


def is_message(value: Any) -> bool:
    """Return whether a value has the keys of a message, whatever they hold."""
    return isinstance(value, Mapping) and any(all(key in value for key in form) for form in _FORMS)


def from_text(value: Any) -> Any:
    """Return the messages in a cell of a table, which holds them as JSON; any other text is returned as it is."""
    found = from_cell(value)
    if found is value:  # also JSON that was found faulty before
        return value
    if isinstance(found, FaultyJson):
        is_chat = any(all(f'"{key}"' in value for key in form) for form in _FORMS)
    else:
        is_chat = isinstance(found, list) and bool(found) and all(map(is_message, found))
    return found if is_chat else value


def messages_of(value: Any, speaker: Role = "user") -> list[Message]:
    """Convert a value to a list of messages; a text becomes a single message.

    Args:
        value: a text or a list of messages.
        speaker: the role of the message that a text becomes.

    Raises:
        ValueError: if the value cannot be used. The error's text starts in lower case, and messages are counted from 1.
    """
    if isinstance(value, str):
        value = [{"role": speaker, "content": value}]
    if value is None:
        raise ValueError("missing")
    if not isinstance(value, list | tuple):
        raise ValueError(f"{show(value)} is of type {type(value).__name__}, not a list of messages")
    if not value:
        raise ValueError("empty")
    if len(value) > MOST_MESSAGES:
        raise ValueError(f"{len(value):,} messages; at most {MOST_MESSAGES} are allowed")
    return [_message(message, f"message {number}") for number, message in enumerate(value, 1)]


def conversation(messages: Sequence[Message], system: str | None, *, ends: Role) -> list[Message]:
    """Return a conversation, after checking the order of its messages.

    Args:
        messages: from `messages_of`.
        system: the system prompt of the task, which is added when the conversation is encoded.
        ends: who speaks last: the assistant in data to learn from, the user in rows to predict.

    Raises:
        ValueError: as in `messages_of`.
    """
    own = [number for number, message in enumerate(messages, 1) if message["role"] == "system"]
    if own and system is not None:
        raise ValueError("it has a system message, and chat.system is set as well: remove one of the two")
    if len(own) > 1:
        raise ValueError(
            f"messages {own[0]} and {own[1]} both have the role system; only one is allowed, at the beginning"
        )
    if own and own[0] > 1:
        raise ValueError(f"message {own[0]} has the role system; only the first message may")
    rest = messages[len(own) :]
    if not rest:
        raise ValueError("it contains nothing but a system message")
    if rest[0]["role"] == "assistant":
        raise ValueError(
            f"message {len(own) + 1}, the first after any system message, has the role assistant, not user"
        )
    if ends == "assistant" and all(message["role"] != "assistant" for message in rest):
        raise ValueError("no message has the role assistant, so there is nothing to learn")
    if rest[-1]["role"] != ends:
        raise ValueError(f"the last message has the role {rest[-1]['role']}; it must be {ends}")
    return list(messages)


def check_conversations(column: Cells[Any], system: str | None) -> tuple[list[list[Message]], list[str]]:
    """Return every conversation without its last message, and the text of the last message.

    Args:
        column: for each row a tuple of the whole conversation, or of its source and its target, each a text or messages.
        system: the system prompt of the task.

    Raises:
        InputError: if a row is not a conversation; the message names these rows and the reasons.
    """

    def parts_of(row: tuple[Any, ...]) -> tuple[list[Message], str]:
        source, *target = row
        messages = messages_of(from_text(source))
        for each in target:
            messages += messages_of(from_text(each), "assistant")
        *start, end = conversation(messages, system, ends="assistant")
        return start, end["content"]

    found = column.read(parts_of, RULE)
    return [start for start, _ in found], [end for _, end in found]


def _message(value: Any, place: str) -> Message:
    if not isinstance(value, Mapping):
        raise ValueError(
            f"{place} is {show(value)}, of type {type(value).__name__}, not a mapping with role and content"
        )
    given = {str(key): each for key, each in value.items() if each is not None}
    form = next((form for form in _FORMS if all(key in given for key in form)), None)
    if form is None:
        keys = ", ".join(map(show, given)) or "nothing"
        raise ValueError(f"{place} has {keys:.200}; expected role and content, or from and value")
    if more := [key for key in given if key not in form]:
        raise ValueError(f"{place} has the key {show(more[0])}, which is not read; allowed: {form[0]}, {form[1]}")
    role, content = given[form[0]], given[form[1]]
    if form[0] == "from" and isinstance(role, str):
        role = _SHARE_GPT.get(role, role)
    if role not in ROLES:
        known = ", ".join(ROLES if form[0] == "role" else (*_SHARE_GPT, *ROLES))
        raise ValueError(f"{place} has {form[0]} {show(role)}; expected one of: {known}")
    if not isinstance(content, str):
        raise ValueError(f"{place}: {form[1]} is {show(content)}, of type {type(content).__name__}; expected text")
    if not content.strip():
        raise ValueError(f"{place} (role {role}) is empty")
    try:
        content.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{place} contains {content[error.start]!a}, an unpaired surrogate, which is not text"
        ) from None
    return {"role": role, "content": content}
