"""Training, `init` and `predict` agree on whether a JSON object is one row or several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from continual_petl.cli.rows_in import read_rows
from continual_petl.predictor.records import TaskColumns
from continual_petl.streams.scaffold.inspect_data import inspect_data
from continual_petl.streams.schema.chat_spec import ChatSpec
from continual_petl.streams.schema.stream_spec import TaskSpec
from continual_petl.streams.sources.read_splits import read_splits

TALK = [{"role": "user", "content": "w1"}, {"role": "assistant", "content": "w2"}, {"role": "user", "content": "w3"}]
SAID = [{"from": "human", "value": "w1"}, {"from": "gpt", "value": "w2"}, {"from": "human", "value": "w3"}]


class _Certificate:
    """What is read of a certificate here."""

    task, pair, options_from = "toy", False, None

    def __init__(self, kind: str, chat: ChatSpec | None) -> None:
        self.kind, self.chat = kind, chat


CASES: list[tuple[str, str, dict[str, str], dict[str, str] | None, Any, list[Any], int | None]] = [
    (
        "texts in a column named messages",
        "classification",
        {"text": "messages"},
        None,
        {"messages": ["win cash", "hi mum"], "label": ["spam", "ham"]},
        ["win cash", "hi mum"],
        2,
    ),
    (
        "numbers in a column named tokens",
        "classification",
        {},
        None,
        {"text": ["good day", "bad day"], "label": ["x", "y"], "tokens": [2, 2]},
        ["good day", "bad day"],
        2,
    ),
    ("one conversation", "causal-lm", {"messages": "conversations"}, None, {"conversations": SAID}, [SAID], 1),
    ("one list of messages", "causal-lm", {"messages": "messages"}, None, {"messages": TALK}, [TALK], 1),
    (
        "one row of words",
        "token-classification",
        {"tokens": "words"},
        None,
        {"words": ["EU", "rejects"], "tags": ["B-ORG", "O"]},
        [["EU", "rejects"]],
        None,
    ),
    (
        "one row of tokens",
        "token-classification",
        {},
        None,
        {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]},
        [["EU", "rejects"]],
        1,
    ),
    (
        "columns of words",
        "token-classification",
        {"tokens": "words"},
        None,
        {"words": [["EU", "rejects"], ["b"]], "tags": [["B-ORG", "O"], ["O"]]},
        [["EU", "rejects"], ["b"]],
        2,
    ),
    (
        "columns of words written as texts",
        "token-classification",
        {"tokens": "words"},
        {"words": " ", "tags": " "},
        {"words": ["EU rejects", "b c"], "tags": ["B-ORG O", "O O"]},
        [["EU", "rejects"], ["b", "c"]],
        2,
    ),
    (
        "columns of tokens written as texts",
        "token-classification",
        {},
        {"tokens": " ", "tags": " "},
        {"tokens": ["EU rejects", "b c"], "tags": ["B-ORG O", "O O"]},
        [["EU", "rejects"], ["b", "c"]],
        None,
    ),
    (
        "questions and answers of a chat",
        "causal-lm",
        {"source": "prompt", "target": "completion"},
        None,
        {"prompt": ["w1", "w2"], "completion": ["w3", "w4"]},
        ["w1", "w2"],
        2,
    ),
]


@pytest.mark.parametrize(
    ("kind", "columns", "lists", "held", "rows", "drafted"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_an_object_is_the_same_rows_everywhere(
    kind: str,
    columns: dict[str, str],
    lists: dict[str, str] | None,
    held: Any,
    rows: list[Any],
    drafted: int | None,
    tmp_path: Path,
) -> None:
    path = tmp_path / "train.json"
    path.write_text(json.dumps(held))
    data = {"path": "json", "data_files": str(path)} | ({"lists": lists} if lists else {})
    spec = TaskSpec.model_validate({"name": "toy", "kind": kind, "data": data, "columns": columns})
    found = read_splits("toy", spec.data, spec.columns, kind=kind)["train"]
    assert found.inputs == rows
    of_task: Any = _Certificate(kind, ChatSpec() if kind == "causal-lm" else None)
    task = TaskColumns.of(of_task, spec)
    for whole in (False, True):
        predicted = read_rows(path, lambda name: task, task="toy", task_column=None, whole=whole)
        assert [row for _, row, *_ in predicted] == rows
    if drafted is not None:
        assert inspect_data(str(path)).num_rows == drafted


def test_a_row_of_standard_columns_is_one_row_for_a_task_that_learned_from_others(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"tokens": ["EU", "rejects"]}))
    data = {"path": "json", "data_files": "x.json"}
    spec = TaskSpec.model_validate(
        {"name": "toy", "kind": "token-classification", "data": data, "columns": {"tokens": "words"}}
    )
    of_task: Any = _Certificate("token-classification", None)
    for task in (TaskColumns.of(of_task, spec), TaskColumns.of(of_task, None)):
        rows = [row for _, row, *_ in read_rows(path, lambda name, own=task: own, task="toy", task_column=None)]  # type: ignore[misc]
        assert rows == [["EU", "rejects"]]
