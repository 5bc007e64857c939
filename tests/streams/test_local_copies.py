"""Local copies are read if the stream has a data_dir: their format, and the errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from continual_petl.errors import InputError, StreamFileError
from continual_petl.streams.preparation.prepare import check_data
from continual_petl.streams.schema.stream_spec import DataSpec, StreamSpec, TaskSpec
from continual_petl.streams.sources.checks import Where
from continual_petl.streams.sources.read_splits import read_splits
from continual_petl.streams.sources.templates import fill_templates
from continual_petl.streams.stream_file.json_schema import json_schema
from continual_petl.streams.stream_file.yaml_file import load_stream, load_task
from tests.streams.hub_formats import write_copy

WHERE = Where(task="t", split="train", origin="rows.csv")
HUB: dict[str, Any] = {"path": "some/set", "revision": "abc", "local": "copy", "templates": {"text": "{title}: {body}"}}
PLAIN = [{"text": f"w{number}", "label": number % 2} for number in range(8)]
STREAM = """name: s
backbone: minilm
tasks:
  - name: t
    kind: classification
    data: {path: some/set, local: copy}
    labels: [no, yes]
"""


def _stream(folder: Path | None, **task: Any) -> tuple[StreamSpec, TaskSpec]:
    whole = {"name": "t", "kind": "classification", "data": HUB, "labels": ["no", "yes"]} | task
    data_dir = None if folder is None else str(folder)
    spec = StreamSpec.model_validate({"name": "s", "backbone": "minilm", "data_dir": data_dir, "tasks": [whole]})
    return spec, spec.tasks[0]


def _read(folder: Path, **task: Any) -> Any:
    spec, own = _stream(folder, **task)
    return read_splits("t", spec.resolved_data(own), own.columns, kind=own.kind)["train"]


def test_copies_are_only_used_with_a_data_dir(tmp_path: Path) -> None:
    found = {}
    for name, folder in (("hub", None), ("copy", tmp_path)):
        spec, task = _stream(folder)
        data = spec.resolved_data(task)
        anchored = spec.anchored()
        assert anchored.resolved_data(anchored.tasks[0]) == data
        assert isinstance(data, DataSpec)
        found[name] = data.local
    assert found == {"hub": None, "copy": str(tmp_path / "copy")}


def test_a_stream_file_without_data_dir_has_no_copies(tmp_path: Path) -> None:
    file = tmp_path / "stream.yaml"
    locals_: list[str | None] = []
    for text, options in (
        (STREAM, []),
        (STREAM + "data_dir: here\n", []),
        (STREAM, [("data_dir", "/there")]),
        (STREAM, [("data_dir", "/there"), ("tasks.t.data.local", "null")]),
        (STREAM, [("data_dir", "/there"), ("tasks.t.data.local", "other")]),
    ):
        file.write_text(text)
        spec = load_stream(file, options)
        data = spec.resolved_data(spec.tasks[0])
        assert isinstance(data, DataSpec)
        locals_.append(data.local)
    assert locals_ == [None, str(tmp_path / "here" / "copy"), "/there/copy", None, "/there/other"]


def test_copy_can_be_a_file(tmp_path: Path) -> None:
    write_copy(tmp_path / "copy", {"train": PLAIN})
    assert _read(tmp_path, data=HUB | {"local": "copy/train.jsonl"}).inputs == [row["text"] for row in PLAIN]
    assert _read(tmp_path, data=HUB | {"local": "*/train.jsonl"}).inputs == [row["text"] for row in PLAIN]


def test_missing_copy_error_lists_existing_ones(tmp_path: Path) -> None:
    (tmp_path / "agnews").mkdir()
    with pytest.raises(
        InputError,
        match=rf"task 't', data.local: there is no {tmp_path}/copy, .*; {tmp_path} holds agnews\. Put a folder .*"
        r"\(--tasks\.t\.data\.local NAME\), or read this task from some/set on the Hub \(--tasks\.t\.data\.local null\)",
    ):
        _read(tmp_path)
    with pytest.raises(InputError, match=rf"no/such/copy, .*; {tmp_path} holds agnews\. Put"):
        _read(tmp_path / "no" / "such")


def test_copy_has_hub_columns_or_standard_columns(tmp_path: Path) -> None:
    write_copy(
        tmp_path / "copy", {"train": [{"title": "a", "body": "b", "label": 0}, {"title": "c", "body": "d", "label": 1}]}
    )
    assert _read(tmp_path).inputs == ["a: b", "c: d"]
    write_copy(tmp_path / "odd" / "copy", {"train": [{"title": "a", "Label": 0}]})
    with pytest.raises(
        InputError,
        match=r"a local copy of some/set has the columns 'text', 'label' or '\{title\}: \{body\}', 'label'; this one has "
        r"'title', 'Label'\. Rename them",
    ):
        _read(tmp_path / "odd")


def test_a_copy_of_pairs_without_the_second_text_is_refused(tmp_path: Path) -> None:
    write_copy(tmp_path / "copy", {"train": PLAIN})
    task = {"data": {"path": "some/set", "local": "copy"}, "columns": {"text": "a", "text_pair": "b"}}
    with pytest.raises(
        InputError, match=r"has the columns 'a', 'b', 'label' or 'text', 'text_pair', 'label'; this one"
    ):
        _read(tmp_path, **task)


def test_label_numbers_refer_to_the_copys_or_the_tasks_names(tmp_path: Path) -> None:
    write_copy(tmp_path / "copy", {"train": PLAIN})
    spec, task = _stream(tmp_path)
    assert check_data(spec, task) == ("no", "yes")
    file = tmp_path / "copy" / "labels.json"
    for names in (["bad", "good"], {"kind": "classification", "names": ["bad", "good"]}):
        file.write_text(json.dumps(names))
        assert check_data(spec, task) == ("bad", "good")
    file.write_text('["a", "b", "c"]')
    with pytest.raises(
        InputError,
        match=r"labels.json names 3 classes, but the task has 2 \(labels: no, yes\): this is a copy of another",
    ):
        check_data(spec, task)
    file.write_text('{"kind": "regression"}')
    with pytest.raises(InputError, match=r"task 't', labels: .*labels.json holds .*must be a JSON list of names"):
        check_data(spec, task)
    regression, own = _stream(tmp_path, kind="regression", labels=None)
    assert check_data(regression, own) is None  # a regression has no classes, so labels.json is ignored


def test_label_file_next_to_a_single_file_copy_is_refused(tmp_path: Path) -> None:
    write_copy(tmp_path / "all", {"train": PLAIN})
    (file,) = (tmp_path / "all").glob("train*")
    spec, task = _stream(tmp_path, data={"path": "some/set", "local": f"all/{file.name}"})
    assert check_data(spec, task) == ("no", "yes")
    (tmp_path / "all" / "labels.json").write_text('["bad", "good"]')
    with pytest.raises(
        InputError,
        match=r"task 't', data.local: .*labels.json is in the same folder as .*unclear whether it names .*Give the folder",
    ):
        check_data(spec, task)


def test_template_joins_columns_and_nested_fields() -> None:
    table: dict[str, list[Any]] = {
        "a": ["x", None, ""],
        "n": [1, 2, 3],
        "m": [{"en": "e", "x.y": "z"}, {"en": "f"}, None],
    }
    filled = fill_templates(WHERE, table, {"t": "{a} {n}", "u": "{{{m.en}}}", "v": " {m.x.y}"})
    assert {name: filled[name] for name in "tuv"} == {
        "t": ["x 1", "2", "3"],
        "u": ["{e}", "{f}", "{}"],
        "v": ["z", "", ""],
    }
    assert fill_templates(WHERE, table, None) is table


@pytest.mark.parametrize(
    ("templates", "message"),
    [
        ({"a": "{n}"}, r"builds a column 'a', which already exists; the columns are 'a', 'n', 'm'"),
        ({"t": "{b}"}, r"data.templates.t is '\{b\}', but there is no column 'b'; the columns are 'a', 'n', 'm'"),
        ({"t": "{m.de}"}, r"there is no column 'm.de'"),
        ({"t": "{a.b}"}, r"there is no column 'a.b'"),
        ({"t": "{m}"}, r"column 'm': 1 row cannot be used: row 1: \{'en': 'e'\} is dict\. A template accepts strings"),
    ],
)
def test_template_with_unknown_columns_is_refused(templates: dict[str, str], message: str) -> None:
    table: dict[str, list[Any]] = {"a": ["x"], "n": [1], "m": [{"en": "e"}]}
    with pytest.raises(InputError, match=message):
        fill_templates(WHERE, table, templates)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{path: x/y, templates: {t: no}}", r"5: key tasks.0.data.templates.t .*: got 'no', which names no column"),
        (
            "{path: x/y, templates: {t: 'a {'}}",
            r"got 'a \{': .*; write a template such as '\{title\} \{content\}', and \{\{ for a",
        ),
        ("{path: x/y, templates: {t: '{a!r}'}}", r"braces can only hold the name of a column"),
        ("{path: x/y, templates: {t: '{}'}}", r"braces can only hold the name of a column"),
        ("{path: embedded, name: chapters, local: x}", r"local has no effect with path: embedded, so remove it"),
        ("{path: csv, data_files: a.csv, local: x}", r"local is a copy of a data set on the Hub and has no effect"),
        ("{path: x/y, local: ''}", r"key tasks.0.data.local"),
    ],
)
def test_contradictory_data_is_refused(data: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "stream.yaml"
    text = f"name: s\nbackbone: minilm\ntasks:\n  - {{name: t, kind: classification,\n     data: {data}}}\n"
    file.write_text(text)
    with pytest.raises(StreamFileError, match=message):
        load_stream(file)


def test_task_file_has_no_copies(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text("name: t\nkind: classification\ndata:\n  path: x/y\n  local: z\n")
    with pytest.raises(StreamFileError, match=r"t.yaml:5: key data.local: a file of one task has no data_dir"):
        load_task(file)


def test_json_schema_has_the_keys() -> None:
    keys = json_schema()["$defs"]["DataSpec"]["properties"]
    assert "relative to the stream's data_dir" in keys["local"]["description"]
    assert "Columns built from other columns" in keys["templates"]["description"]


LABELS = ["toxic", "insult", "threat"]


@pytest.mark.parametrize("label", [1, "011", ["toxic"], [1, 0, 1]])
def test_one_column_does_not_stand_for_a_column_for_each_label(tmp_path: Path, label: Any) -> None:
    write_copy(tmp_path / "copy", {"train": [{"text": f"w{number}", "label": label} for number in range(8)]})
    task = {"kind": "multilabel", "columns": {"text": "body", "label": LABELS}, "data": HUB | {"templates": None}}
    with pytest.raises(InputError, match=r"has the columns .*'toxic, insult, threat'; this one has 'text', 'label'"):
        _read(tmp_path, **task, labels=None)


def test_a_copy_with_the_usual_text_has_a_column_for_each_label(tmp_path: Path) -> None:
    rows = [{"text": f"w{n}", "toxic": n % 2, "insult": 0, "threat": 1} for n in range(8)]
    write_copy(tmp_path / "copy", {"train": rows})
    task = {"kind": "multilabel", "columns": {"text": "body", "label": LABELS}, "data": HUB | {"templates": None}}
    found = _read(tmp_path, **task, labels=None)
    assert found.inputs == [row["text"] for row in rows]
    assert [[*row] for row in found.answers] == [[n % 2, 0, 1] for n in range(8)]
