"""Find, check and render chat templates.

A template is untrusted, since it may come with anybody's checkpoint. transformers renders it in a sandbox (Jinja's
``ImmutableSandboxedEnvironment``) and gives it plain values only; the sizes of templates and of rendered texts, and the time
and memory of a rendering, are limited here. A template whose output changes over time, for example with the date, is refused:
a bank's answers would change with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from continual_petl.errors import InputError
from continual_petl.streams.encoding.bounded import MAX_BYTES, MAX_SECONDS, TooLong, bounded
from continual_petl.streams.schema.chat_spec import (
    MAX_TEMPLATE,
    ChatSpec,
    ResolvedChat,
    digest_of,
    is_template,
    named_tokens,
)
from continual_petl.streams.sources.checks import show
from continual_petl.streams.sources.conversations import Message

_TIMES, _MORE = 4, 200_000
"""A rendering may have at most ``_TIMES`` times the characters of its messages, plus ``_MORE``."""
_CHANGING = re.compile(r"\bstrftime_now\b|\blipsum\b|\|\s*random\b|[\"']random[\"']")
_ADDRESS = re.compile(r"<[^<>]* at 0x[0-9a-f]+>")
"""How Python writes an object such as a generator: with an address that changes from one process to the next."""
_USER, _ANSWER = "Hello", "Goodbye"
WRITE_MARKS = (
    "Write the template to a file, put {% generation %} before the text of an assistant message and {% endgeneration %} "
    "after the token that ends it, and name the file under chat.template"
)


class UnusableChat(ValueError):
    """A conversation that cannot be rendered, or cannot be learned as requested; the message says why."""


def render(
    tokenizer: PreTrainedTokenizerBase, chat: ResolvedChat, messages: Sequence[Message], *, prompt: bool = False
) -> str:
    """Return a conversation as text.

    Args:
        tokenizer: the backbone's tokenizer; its own template is not used.
        chat: the template.
        messages: the conversation, to which the system prompt of the task is added.
        prompt: whether to append the generation prompt, which begins an answer.

    Raises:
        UnusableChat: if the template fails, or returns too much text.
    """
    text, _ = _rendered(tokenizer, chat, messages, prompt=prompt)
    for message in _with_system(chat, messages):
        if message["role"] != "assistant":  # some templates leave the thinking out of earlier answers
            check_written(message, text)
    return text


def check_written(message: Message, text: str) -> None:
    """Raise `UnusableChat` if a template left a message out, or changed it."""
    if message["content"].strip() not in text:
        raise UnusableChat(
            f"the chat template leaves out, or changes, a message with the role {message['role']}, "
            f"{show(message['content'])}; change the conversation or chat.system, or name another template under "
            "chat.template"
        )


def _with_system(chat: ResolvedChat, messages: Sequence[Message]) -> list[Message]:
    return [*([] if chat.system is None else [{"role": "system", "content": chat.system}]), *messages]


def marked(tokenizer: PreTrainedTokenizerBase, chat: ResolvedChat, messages: Sequence[Message]) -> list[int]:
    """Return 1 for each token of a conversation that the template marks as generated, and 0 for all others.

    Raises:
        UnusableChat: as in `render`.
    """
    text, spans = _rendered(tokenizer, chat, messages, marks=True)
    found = tokenizer(text, add_special_tokens=False)
    mask = [0] * len(found["input_ids"])
    for begin, end in spans:  # as in `apply_chat_template`, which would render the conversation without limits
        first, last = found.char_to_token(0, begin), found.char_to_token(0, end - 1)
        if first is None:
            break
        for place in range(first, last + 1 if last else len(mask)):
            mask[place] = 1
    return mask


def _rendered(
    tokenizer: PreTrainedTokenizerBase,
    chat: ResolvedChat,
    messages: Sequence[Message],
    *,
    prompt: bool = False,
    marks: bool = False,
) -> tuple[str, Sequence[tuple[int, int]]]:
    """Return a conversation as text and, with ``marks``, the spans that the template marks as generated.

    Nothing else renders a template.
    """
    messages = _with_system(chat, messages)
    limit = _TIMES * sum(len(message["content"]) for message in messages) + _MORE
    names: dict[str, Any] = {**tokenizer.special_tokens_map, **chat.tokens}
    try:
        with bounded():
            rendered: Any = render_jinja_template(
                [messages],
                chat_template=chat.template,
                add_generation_prompt=prompt,
                return_assistant_tokens_mask=marks,
                **names,
            )
    except (TooLong, MemoryError) as error:
        what = f"needs more than {MAX_BYTES >> 20} MB of memory"
        if isinstance(error, TooLong):
            what = f"took more than {MAX_SECONDS:g} seconds"
        raise UnusableChat(
            f"the chat template {what} for one conversation; name another template under chat.template"
        ) from None  # the error's frames hold the memory
    except Exception as error:  # a template can call anything, with any arguments
        raise UnusableChat(
            f"the chat template cannot render this conversation: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]}; change the conversation, or name another template under chat.template"
        ) from error
    (found,), spans = rendered
    if len(found) > limit:
        raise UnusableChat(
            f"the chat template turns a conversation of {(limit - _MORE) // _TIMES:,} characters into {len(found):,}; at "
            f"most {limit:,} are allowed: name another template under chat.template"
        )
    return found, spans[0] if marks else ()


def chat_of(task: str, spec: ChatSpec | None, tokenizer: PreTrainedTokenizerBase | None) -> ResolvedChat | None:
    """Return the chat settings of a task with its template; None for a task on texts or images.

    Args:
        task: name of the task.
        spec: from `StreamSpec.resolved_chat`.
        tokenizer: the backbone's tokenizer.

    Raises:
        InputError: if there is no template that can be used.
    """
    if spec is None or tokenizer is None:
        return None
    try:
        return resolve_chat(spec, tokenizer)
    except InputError as error:
        raise InputError(f"task {task!r}, {error}", key=("chat",)) from None


def resolve_chat(spec: ChatSpec, tokenizer: PreTrainedTokenizerBase) -> ResolvedChat:
    """Return the chat settings of a task with the text of its template, checked.

    Args:
        spec: the settings; a path is relative to the working directory.
        tokenizer: the backbone's tokenizer.

    Raises:
        InputError: if there is no template, or it cannot be used; the message begins with the key.
    """
    template = _own(tokenizer) if spec.template is None else spec.template
    if spec.template is not None and not is_template(spec.template):
        template = _read(spec.template)
    where = f"chat.template ({'that of the tokenizer' if spec.template is None else f'{spec.template!r:.80}'})"
    if len(template) > MAX_TEMPLATE:
        raise InputError(
            f"{where}: it has {len(template):,} characters; at most {MAX_TEMPLATE:,} are allowed: use a shorter one."
        )
    if (found := _CHANGING.search(template)) is not None:
        raise InputError(
            f"{where}: it uses {found[0].strip(' |')!r}, so a conversation would become a different text tomorrow, but "
            "the answers of a bank must not change: write a copy of the template (tokenizer.chat_template) to a file, "
            "replace this by fixed text, and name the file under chat.template."
        )
    chat = ResolvedChat(
        template=template,
        digest=digest_of(template),
        system=spec.system,
        loss_on=spec.loss_on,
        tokens=named_tokens(tokenizer.special_tokens_map),
        end=0,
    )
    if _has_powers(template):
        raise InputError(
            f"{where}: it uses the operator **, whose results can take any time to compute; write a copy of the template "
            "to a file, replace it by the number, and name the file under chat.template."
        )
    example = [{"role": "user", "content": _USER}, {"role": "assistant", "content": _ANSWER}]
    try:
        text = render(tokenizer, chat, example)
        if (found := _ADDRESS.search(text)) is not None:
            raise UnusableChat(f"the chat template writes an object of Python, {found[0]!r:.80}, not a text")
        after = text.rpartition(_ANSWER)
    except UnusableChat as error:
        raise InputError(f"{where}: {error}.") from error
    return chat.model_copy(update={"end": _end(tokenizer, after[2] if after[1] else "", where)})


def _has_powers(template: str) -> bool:
    try:
        return any(kind == "operator" and text == "**" for _, kind, text in jinja2.Environment().lex(template))
    except jinja2.TemplateError:  # reported when it is rendered
        return False


def _end(tokenizer: PreTrainedTokenizerBase, after: str, where: str) -> int:
    """Return the token that ends an assistant message: the end token, or the first special token after the text."""
    ids = tokenizer(after, add_special_tokens=False)["input_ids"]
    special = {*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    end = next((token for token in ids if token == tokenizer.eos_token_id or token in special), None)
    if end is None:
        raise InputError(
            f"{where}: no special token follows the text of an assistant message ({after!r:.80} does), so a bank could not "
            "learn where an answer ends: write a copy of the template to a file, put {{ eos_token }} after the assistant's "
            "text, and name the file under chat.template."
        )
    return int(end)


def _own(tokenizer: PreTrainedTokenizerBase) -> str:
    try:
        return str(tokenizer.get_chat_template())
    except ValueError as error:
        raise InputError(
            "chat.template: the backbone's tokenizer has no chat template, as is usual for models that were not trained on "
            "conversations. Choose the chat variant of the model (its name often ends in -Instruct or -Chat), name a "
            "file with a Jinja template under chat.template, or learn texts: columns source and target, without chat."
        ) from error


def _read(path: str) -> str:
    file = Path(path)
    try:
        # A device could be endless.
        text = file.read_text("utf-8") if file.is_file() and file.stat().st_size <= 4 * MAX_TEMPLATE else ""
    except (OSError, ValueError):
        text = ""
    if not is_template(text):
        raise InputError(
            f"chat.template: {path!r:.200} is not a UTF-8 file of at most {MAX_TEMPLATE:,} characters with a Jinja "
            "template ({{ ... }} or {% ... %}); give the path of one, relative to the folder of the stream file, or the "
            "template."
        )
    return text
