"""Chat templates are found, checked and rendered, or refused with advice; settings of ``chat`` have to fit their task."""

from __future__ import annotations

import resource
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jinja2
import pytest
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from continual_petl.errors import InputError
from continual_petl.streams.encoding import chat_template
from continual_petl.streams.encoding.bounded import bounded
from continual_petl.streams.encoding.chat_template import UnusableChat, marked, render, resolve_chat
from continual_petl.streams.encoding.tokenise_chats import tokenise_chats
from continual_petl.streams.schema.chat_spec import MAX_TEMPLATE, ChatSpec, ResolvedChat
from continual_petl.streams.schema.stream_spec import StreamSpec
from tests.chats import CHAT_TOKENIZER, CHATML, CHATML_PLAIN, assistant, chat_of, chat_tokenizer, encoded, how, user


def test_a_template_that_leaves_a_message_out_is_refused() -> None:
    template = CHATML.replace(
        "{% for message in messages %}", "{% for message in messages if message['role'] != 'system' %}"
    )
    with pytest.raises(
        InputError, match=r"leaves out, or changes, a message with the role system, 'be kind'; change the conversation"
    ):
        encoded([{"role": "system", "content": "be kind"}, user("a"), assistant("b")], chat_of(template))
    with pytest.raises(
        InputError, match=r"^chat\.template \(.*leaves out, or changes, a message with the role system, 'be kind'"
    ):
        chat_of(template, system="be kind")
    with pytest.raises(InputError, match="leaves out, or changes, a message with the role assistant, '<b>B'"):
        encoded([user("a"), assistant("<b>B")], chat_of(CHATML.replace("content']", "content'] | replace('<b>', '')")))


def test_resolved_chat_renders_the_same_with_another_tokenizer() -> None:
    chat = chat_of(CHATML.replace("<|im_end|>", "{{ eos_token }}").replace("'{{ eos_token }}'", "eos_token"))
    other = chat_tokenizer(None)
    other.eos_token = "<|im_end|>"
    assert chat.end == CHAT_TOKENIZER.convert_tokens_to_ids("<|end|>")
    assert render(other, chat, [user("a")]) == "<|im_start|>user\na<|end|>\n"


def test_the_end_of_an_answer_is_the_first_special_token_after_it() -> None:
    assert chat_of().end == CHAT_TOKENIZER.convert_tokens_to_ids("<|im_end|>")
    none = CHATML_PLAIN.replace("<|im_end|>", "###")
    with pytest.raises(
        InputError, match=r"no special token follows the text of an assistant message .* put \{\{ eos_token"
    ):
        chat_of(none)


def test_templates_come_from_the_tokenizer_the_stream_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text(CHATML_PLAIN, encoding="utf-8")
    assert chat_of().template == CHATML
    assert chat_of(str(file)) == chat_of(CHATML_PLAIN)
    assert chat_of(CHATML_PLAIN).spec == ChatSpec(template=CHATML_PLAIN)


@pytest.mark.parametrize(
    ("template", "what"),
    [
        (
            "nowhere.jinja",
            "'nowhere.jinja' is not a UTF-8 file of at most 100,000 characters with a Jinja template ({{ ... }}",
        ),
        (".", "is not a UTF-8 file"),
        ("/dev/zero", "is not a UTF-8 file"),
        ("{% for %}", "TemplateSyntaxError"),
        ("{{ raise_exception('only ducks') }}", "TemplateError: only ducks; change the conversation"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        (
            "{{ strftime_now('%d') }}",
            "it uses 'strftime_now', so a conversation would become a different text tomorrow",
        ),
        ("{{ [1, 2] | random }}", "it uses 'random'"),
        ("{{ 'a' * 300000 }}", "turns a conversation of 12 characters into 300,000; at most 200,048 are allowed"),
        ("{# " + "a" * MAX_TEMPLATE + " #}{{ 1 }}", "it has 100,013 characters; at most 100,000 are allowed"),
    ],
)
def test_templates_that_cannot_be_used_are_refused(template: str, what: str) -> None:
    with pytest.raises(InputError) as caught:
        chat_of(template)
    assert str(caught.value).startswith("chat.template")
    assert what in str(caught.value)
    assert len(str(caught.value)) < 700


BOMBS = {
    "{{ 'a' * 10**10 }}": "it uses the operator **",
    "{{ {}|length + 2 ** 9999999999 }}": "it uses the operator **",
    "{{ 'a' * 10000000000 }}": "needs more than 256 MB of memory|MemoryError",
    "{{ ['a' * 1000000] * 1000000 }}": "needs more than 256 MB of memory|MemoryError",
    "{{ 'a'|center(10000000000) }}": "needs more than 256 MB of memory|MemoryError",
    "{{ '%09999999999d' % 1 }}": "needs more than 256 MB of memory|MemoryError|ValueError|OverflowError",
    "{{ '{:09999999999}'.format(1) }}": "needs more than 256 MB of memory|MemoryError|ValueError",
    "{% set n = namespace(x='a') %}{% for _ in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}": "256 MB|MemoryError",
    "{{ range(1000000000)|list }}": "OverflowError: Range too big",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "RecursionError",
    "{{ '{0.__class__.__mro__}'.format(1) }}": "SecurityError",
    "{{ (messages|attr('__class__')).mro }}": "SecurityError|UndefinedError",
    "{{ messages.append(1) }}": "SecurityError",
    "{{ messages|map('upper') }}": "writes an object of Python",
    "{{ [1, 2]|map('random') }}": "it uses",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_templates_cannot_exhaust_the_machine_or_leave_the_sandbox(bomb: str) -> None:
    with pytest.raises(InputError, match=BOMBS[bomb].replace("**", r"\*\*")):
        chat_of(bomb + CHATML)


def test_a_bomb_in_a_later_conversation_is_refused_too() -> None:
    bomb = "{% if 'boom' in messages[0]['content'] %}{{ messages[0]['content'] * 10000000000 }}{% endif %}"
    chat = chat_of(bomb + CHATML)
    with pytest.raises(UnusableChat, match="needs more than 256 MB of memory"):
        render(CHAT_TOKENIZER, chat, [user("boom")])
    assert render(CHAT_TOKENIZER, chat, [user("hello")]) == render(CHAT_TOKENIZER, chat_of(), [user("hello")])


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}" + "{% endfor %}" * 3


@pytest.mark.parametrize("in_thread", [False, True])
def test_loops_without_end_are_interrupted(monkeypatch: pytest.MonkeyPatch, in_thread: bool) -> None:
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.05)
    monkeypatch.setattr(chat_template, "bounded", lambda: bounded(0.05))
    found: list[str] = []

    def attempt() -> None:
        with pytest.raises(InputError, match=r"took more than 0\.05 seconds for one conversation"):
            chat_of(ENDLESS + CHATML)
        found.append("refused")

    if in_thread:
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
    else:
        attempt()
    assert found == ["refused"]


def test_limits_are_lifted_after_a_block() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(MemoryError), bounded():
        bytearray(2**40)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert len(bytearray(2**29)) == 2**29


@pytest.mark.parametrize("content", [b"\xff{{", b"hello", b"{" * 400_001])
def test_files_without_a_template_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "chat.jinja"
    file.write_bytes(content)
    with pytest.raises(
        InputError, match=r"chat\.jinja' is not a UTF-8 file of at most 100,000 characters with a Jinja"
    ):
        chat_of(str(file))


@pytest.mark.parametrize("template", [None, {"tool_use": CHATML}])
def test_a_tokenizer_without_a_template_is_refused_with_the_ways_out(template: Any) -> None:
    tokenizer: PreTrainedTokenizerFast = chat_tokenizer(template)
    with pytest.raises(InputError) as caught:
        resolve_chat(ChatSpec(), tokenizer)
    for way in ("no chat template", "-Instruct or -Chat", "under chat.template", "columns source and target"):
        assert way in str(caught.value)


def test_an_error_in_one_row_names_the_row() -> None:
    template = CHATML.replace(
        "{{ '\\n' }}", "{% if 'duck' in message['content'] %}{{ raise_exception('duck') }}{% endif %}{{ '\\n' }}"
    )
    with pytest.raises(
        InputError, match=r"^rows, row 2, 'duck': the chat template cannot render this conversation: TemplateE"
    ):
        tokenise_chats(
            [[user("a")], [user("duck")]],
            ["b", "b"],
            how(200, chat=chat_of(template)),
        )
    with pytest.raises(
        InputError,
        match=r"under chat\.template\. 1 more cannot be used, for this or another reason; the next is row 3\.$",
    ):
        tokenise_chats(
            [[user("a")], *[[user("duck")]] * 2],
            None,
            how(200, chat=chat_of(template)),
        )
    with pytest.raises(UnusableChat, match="duck"):
        render(CHAT_TOKENIZER, chat_of(template), [user("duck")])


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"digest": "0" * 64}, "it does not match the template"),
        ({"tokens": {"tools": "a"}}, "'tools' is not the name of a special token"),
        ({"template": "a" * 100_001}, "at most 100000 characters"),
    ],
)
def test_a_certificate_that_was_changed_is_refused(changed: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        ResolvedChat.model_validate(chat_of().model_dump() | changed)


TALK = {"name": "talk", "kind": "causal-lm", "data": "talk.jsonl", "columns": {"messages": "messages"}}


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"kind": "seq2seq", "columns": {}, "chat": {}}, "has no effect on a seq2seq"),
        (
            {"kind": "seq2seq", "columns": {"messages": "m"}},
            "is not read by a seq2seq task, which reads source, options, target",
        ),
        ({"columns": {"messages": "m", "source": "s"}}, "is not read if messages is given: remove it"),
        (
            {"columns": {"text": "m"}},
            "is not read by a causal-lm task, which reads source, options, target, or only messages: remove it",
        ),
        ({"chat": {"loss_on": "none"}}, "response, last, all"),
        ({"chat": {"system": " "}}, "it is blank"),
        ({"chat": {"tools": []}}, "tools"),
    ],
)
def test_misplaced_keys_are_refused(more: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=r"StreamSpec: key tasks\.0") as caught:
        StreamSpec.model_validate({"name": "s", "backbone": "minilm", "tasks": [TALK | more]})
    assert what in str(caught.value)


def test_written_streams_have_only_the_given_keys() -> None:
    topics = {"name": "topics", "kind": "classification", "data": "topics.csv"}
    spec = StreamSpec.model_validate({"name": "s", "backbone": "minilm", "tasks": [TALK, topics]})
    one, other = spec.model_dump(mode="json")["tasks"]
    assert one["columns"] == {"messages": "messages"}
    assert "chat" not in one
    assert "chat" not in other
    assert StreamSpec.model_validate(spec.model_dump(mode="json")) == spec


def test_memory_of_a_process_is_not_limited_from_another_thread() -> None:
    """An endpoint renders conversations while another of its threads computes."""

    def limit() -> tuple[int, int]:
        with bounded():
            return resource.getrlimit(resource.RLIMIT_AS)

    before = resource.getrlimit(resource.RLIMIT_AS)
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(limit).result() == before
    assert (limit() != before) is (sys.platform == "linux")
    assert resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.parametrize("loss_on", ["response", "last", "all"])
@pytest.mark.parametrize("template", [CHATML, CHATML_PLAIN])
def test_every_rendering_is_bounded(monkeypatch: pytest.MonkeyPatch, template: str, loss_on: Any) -> None:
    """Also the second rendering of a conversation, which finds the tokens that the template marks."""
    inside, rendered = [0], [0]

    @contextmanager
    def watched() -> Iterator[None]:
        inside[0] += 1
        with bounded():
            yield
        inside[0] -= 1

    def checked(real: Any) -> Any:
        def call(*given: Any, **more: Any) -> Any:
            assert inside[0] == 1
            rendered[0] += 1
            return real(*given, **more)

        return call

    monkeypatch.setattr(chat_template, "bounded", watched)
    monkeypatch.setattr(jinja2.Template, "render", checked(jinja2.Template.render))
    monkeypatch.setattr(jinja2.Template, "generate", checked(jinja2.Template.generate))
    chat = chat_of(template, loss_on=loss_on)
    rows = [[user("a"), assistant("b"), user("c")], [user("d")]]
    tokenise_chats(rows, ["e", "f"], how(200, chat=chat, options=["e", "f"]))
    assert rendered[0] > 6


def test_marks_are_found_within_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that takes longer the second time is interrupted then."""
    chat, times = chat_of(), [0]

    def slow(*given: Any, **more: Any) -> Any:
        if more["return_assistant_tokens_mask"]:
            while True:
                times[0] += 1
        return render_jinja_template(*given, **more)

    monkeypatch.setattr(chat_template, "render_jinja_template", slow)
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.05)
    monkeypatch.setattr(chat_template, "bounded", lambda: bounded(0.05))
    with pytest.raises(UnusableChat, match=r"took more than 0\.05 seconds for one conversation"):
        marked(CHAT_TOKENIZER, chat, [user("a"), assistant("b")])
    assert times[0] > 0
