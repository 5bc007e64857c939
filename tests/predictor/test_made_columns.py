"""Rows of tasks whose columns are made of others: each task gets its own, and a row of a table stays one row."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from continual_petl.predictor.given import Given
from continual_petl.store.store import Store

TASKS: dict[str, dict[str, Any]] = {
    "title": {"templates": {"text": "{title}"}},
    "again": {"templates": {"text": "{title}"}},
    "body": {"templates": {"text": "{body}"}},
    "both": {"templates": {"text": "{title} {body}"}},
    "nested": {"templates": {"text": "{a.b}: {answers.0}"}},
    "plain": {},
    "marked": {"kind": "token-classification", "lists": {"tokens": "|", "tags": "|"}},
    "spaced": {"kind": "token-classification"},
}


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """Return what is read of a store: the certificates of its tasks, and its stream file."""
    tasks: list[Any] = []
    certificates: dict[str, Any] = {}
    for name, more in TASKS.items():
        data = {key: more[key] for key in ("templates", "lists") if key in more}
        kind = more.get("kind", "classification")
        tasks.append({"name": name, "kind": kind, "data": {"path": "json", "data_files": "x.jsonl", **data}})
        certificates[name] = SimpleNamespace(task=name, kind=kind, pair=False, options_from=None, chat=None)
    file = tmp_path / "stream.yaml"
    file.write_text(json.dumps({"name": "made", "backbone": "minilm", "tasks": tasks}))
    return SimpleNamespace(stream_file=file, certificate=certificates.__getitem__)


def rows_of_each(store: Store, rows: Any, tasks: list[str]) -> dict[str, Any]:
    """Return the rows of each task as `predict_all` reads them: once for the tasks that read the same."""
    given = Given(store, rows, tasks)
    return {task: given.rows(alike[0]) for alike in given.alike(tasks) for task in alike}


def test_each_task_reads_its_own_template(store: Store) -> None:
    rows = [{"title": "T1", "body": "B1"}, {"title": "T2", "body": "B2"}]
    read = rows_of_each(store, rows, ["title", "body", "both", "again"])
    right = {"title": ["T1", "T2"], "again": ["T1", "T2"], "body": ["B1", "B2"], "both": ["T1 B1", "T2 B2"]}
    assert read == right
    assert ["title", "again"] in Given(store, rows, ["title"]).alike(["title", "body", "again"])


def test_each_task_splits_its_own_lists(store: Store) -> None:
    read = rows_of_each(store, [{"tokens": "EU|x y"}], ["marked", "spaced"])
    assert read == {"marked": [["EU", "x y"]], "spaced": [["EU|x", "y"]]}


def test_a_row_of_a_table_is_one_row_for_a_template(store: Store) -> None:
    frame = pd.DataFrame({"title": ["T1", "T2"], "body": ["B1", "B2"]})
    for row in (frame.iloc[0], frame.iloc[0].to_dict(), frame.set_index("body", drop=False).iloc[0]):
        given = Given(store, row, ["both"])
        assert given.one
        assert given.rows("both") == ["T1 B1"]
    for table in (frame, frame.to_dict("list"), frame.to_dict("records"), frame.to_dict("series")):
        given = Given(store, table, ["both"])
        assert not given.one
        assert given.rows("both") == ["T1 B1", "T2 B2"]


def test_parts_of_nested_columns_are_one_row_or_several(store: Store) -> None:
    records = [{"a": {"b": "A"}, "answers": ["x", "y"]}, {"a": {"b": "B"}, "answers": ["z"]}]
    for rows in (records, pd.DataFrame(records), {name: [row[name] for row in records] for name in ("answers", "a")}):
        assert Given(store, rows, ["nested"]).rows("nested") == ["A: x", "B: z"]
    for row in (records[0], pd.DataFrame(records).iloc[0], {name: records[0][name] for name in ("answers", "a")}):
        given = Given(store, row, ["nested"])
        assert given.one
        assert given.rows("nested") == ["A: x"]


def test_texts_are_rows_of_a_task_with_a_template(store: Store) -> None:
    assert Given(store, pd.Series(["x", "y"]), ["both"]).rows("both") == ["x", "y"]
    assert Given(store, pd.Series({"text": "x", "label": "y"}, name=3), ["plain"]).rows("plain") == ["x"]
