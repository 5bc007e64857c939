"""Conversations in all supported formats become one format; anything else is refused with file, row and reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from continual_petl.errors import InputError
from continual_petl.predictor.records import RowForm, row_of
from continual_petl.streams.sources.cells import from_cell
from continual_petl.streams.sources.checks import Cells, Where
from continual_petl.streams.sources.conversations import (
    MOST_MESSAGES,
    check_conversations,
    conversation,
    is_message,
    messages_of,
)
from tests.chats import assistant, user

WHERE = Where(task="talk", split="train", origin="chats.jsonl")
SYSTEM = {"role": "system", "content": "be kind"}


@pytest.mark.parametrize(
    ("parts", "source", "answer"),
    [
        (([user("a"), assistant("b")],), [user("a")], "b"),
        (([SYSTEM, user("a"), assistant("b")],), [SYSTEM, user("a")], "b"),
        (([{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],), [user("a")], "b"),
        (([{"role": "user", "content": "a", "name": None}, assistant("b")],), [user("a")], "b"),
        (("a", "b"), [user("a")], "b"),
        (([user("a")], [assistant("b")]), [user("a")], "b"),
        (([user("a"), assistant("b"), user("c")], "d"), [user("a"), assistant("b"), user("c")], "d"),
        ((json.dumps([user("a")]), json.dumps([assistant("b")])), [user("a")], "b"),  # in a cell of a table
        (('["a", 1]', '[{"a": 1}]'), [user('["a", 1]')], '[{"a": 1}]'),
        (([user("a")], [assistant("b"), user("c"), assistant("d")]), [user("a"), assistant("b"), user("c")], "d"),
    ],
)
def test_every_form_becomes_the_same(parts: tuple[Any, ...], source: list[Any], answer: str) -> None:
    assert check_conversations(Cells(WHERE, "messages", [parts]), None) == ([source], [answer])


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (None, "missing"),
        ([], "empty"),
        (7, "7 is of type int, not a list of messages"),
        ({"role": "user", "content": "a"}, "is of type dict, not a list of messages"),
        ([user("a")] * (MOST_MESSAGES + 1), "501 messages; at most 500 are allowed"),
        (["a"], "message 1 is 'a', of type str, not a mapping with role and content"),
        ([None], "message 1 is None, of type NoneType"),
        ([{}], "message 1 has nothing; expected role and content, or from and value"),
        ([{"role": "user"}], "message 1 has 'role'; expected role and content"),
        ([user("a"), {"role": "robot", "content": "b"}], "message 2 has role 'robot'; expected one of: system, user"),
        ([{"role": ["user"], "content": "b"}], "message 1 has role ['user']; expected one of: system, user, assistant"),
        ([{"from": "bing", "value": "b"}], "message 1 has from 'bing'; expected one of: human, gpt, system"),
        ([{"role": "user", "content": 3}], "message 1: content is 3, of type int; expected text"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}]}], "of type list; expected text"),
        (
            [{"role": "user", "content": "a", "tool_calls": [1]}],
            "message 1 has the key 'tool_calls', which is not read",
        ),
        ([user("a"), assistant("b"), {"role": "tool", "content": "c"}], "message 3 has role 'tool'"),
        ([user(" \n")], "message 1 (role user) is empty"),
        ([user("\ud800"), assistant("b")], "an unpaired surrogate"),
        ([SYSTEM, SYSTEM, user("a")], "messages 1 and 2 both have the role system"),
        ([user("a"), SYSTEM, assistant("b")], "message 2 has the role system; only the first message may"),
        ([SYSTEM], "it contains nothing but a system message"),
        ([assistant("b")], "message 1, the first after any system message, has the role assistant, not user"),
        ([SYSTEM, assistant("b")], "message 2, the first after any system message, has the role assistant"),
        ([user("a")], "no message has the role assistant, so there is nothing to learn"),
        ([user("a"), assistant("b"), user("c")], "the last message has the role user; it must be assistant"),
    ],
)
def test_invalid_conversation_is_refused(value: Any, what: str) -> None:
    good = [user("a"), assistant("b")]
    with pytest.raises(InputError) as caught:
        check_conversations(Cells(WHERE, "messages", [(good,), (value,)]), None)
    message = str(caught.value)
    assert message.startswith(
        "task 'talk', split train (chats.jsonl), column 'messages': 1 row cannot be used: row 2: "
    )
    assert what in message
    assert "A conversation is a list of messages" in message


def test_system_message_in_both_row_and_task_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"has a system message, and chat\.system is set as well: remove one of the two"
    ):
        check_conversations(Cells(WHERE, "messages", [([SYSTEM, user("a"), assistant("b")],)]), "be brief")


def test_a_missing_target_is_refused() -> None:
    with pytest.raises(InputError, match="row 1: missing"):
        check_conversations(Cells(WHERE, "source and target", [("a", None)]), None)


def test_rows_to_predict_end_with_the_user() -> None:
    assert conversation(messages_of("a"), "be kind", ends="user") == [user("a")]
    with pytest.raises(ValueError, match="the last message has the role assistant; it must be user"):
        conversation(messages_of([user("a"), assistant("b")]), None, ends="user")


@pytest.mark.parametrize(
    ("cell", "row"),
    [
        (json.dumps([user("a")]), [user("a")]),
        *((text, text) for text in ("[1, 2]", "[broken", "[1e999]", '[{"a":1,"a":2}]')),
    ],
)
def test_a_cell_to_predict_means_what_it_means_in_training(cell: str, row: Any) -> None:
    form = RowForm("task 'talk'", ("source",), "messages", asked=True)
    assert row_of({"source": cell}, "row 1", form) == row
    assert check_conversations(Cells(WHERE, "source", [(cell, "b")]), None) == ([messages_of(row)], ["b"])


def test_cells_of_tables_hold_json() -> None:
    assert from_cell('[{"role": "user", "content": "a"}]') == [user("a")]
    for text in ("[broken", "[" * 5000, "a text", '{"role": 1}'):
        assert from_cell(text) == text
    assert not is_message({"text": "a"})
