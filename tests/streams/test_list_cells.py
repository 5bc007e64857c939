"""Several labels of a row in one cell, or in a column each: targets are those of pandas, and odd cells are refused by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from continual_petl.cli.rows_in import read_rows
from continual_petl.errors import InputError, StreamFileError
from continual_petl.predictor.records import TaskColumns
from continual_petl.streams.preparation.checked_rows import Checked
from continual_petl.streams.preparation.prepare import _read
from continual_petl.streams.schema.stream_spec import ColumnsSpec, StreamSpec, TaskSpec
from continual_petl.streams.sources.read_splits import read_splits

CELLS = ["sport|world news", "art", "", " sport | art", "world news", "art|sport|world news"] * 250
NAMES = ["world news", "sport", "art"]


def spec_of(data: Any, **more: Any) -> StreamSpec:
    task = {"name": "toy", "kind": "multilabel", "data": data, **more}
    return StreamSpec.model_validate({"name": "s", "seed": 3, "backbone": "x", "tasks": [task]})


def read(spec: StreamSpec) -> tuple[tuple[str, ...] | None, dict[str, Checked]]:
    return _read(spec, spec.tasks[0], True)[:2]


def dummies(cells: list[str]) -> pd.DataFrame:
    return (
        pd.Series([cell.replace(" | ", "|").strip() for cell in cells])
        .str.get_dummies("|")
        .drop(columns="", errors="ignore")
    )


def by_text(split: Checked) -> dict[str, list[float]]:
    return {str(text): row.tolist() for text, row in zip(split.inputs, split.answers, strict=True)}


@pytest.mark.parametrize("mark", ["|", ";", ", ", " / "])
def test_labels_in_one_cell_have_the_targets_of_get_dummies(tmp_path: Path, mark: str) -> None:
    texts = [f"text {number}" for number in range(len(CELLS))]
    path = tmp_path / "rows.csv"
    pd.DataFrame({"text": texts, "genres": [cell.replace("|", mark) for cell in CELLS]}).to_csv(path, index=False)
    data = {"path": "csv", "data_files": str(path), "lists": {"genres": mark}}
    labels, splits = read(spec_of(data, columns={"label": "genres"}))
    wanted = dummies(CELLS)
    assert labels == tuple(wanted.columns)
    found = {text: row for split in splits.values() for text, row in by_text(split).items()}
    assert found == dict(zip(texts, wanted.to_numpy().tolist(), strict=True))


@pytest.mark.parametrize("written", [str, float, bool, int])
def test_a_column_for_each_label_has_the_targets_in_its_rows(tmp_path: Path, written: Any) -> None:
    flags = dummies(CELLS)[NAMES]
    texts = [f"text {number}" for number in range(len(CELLS))]
    path = tmp_path / ("rows.csv" if written is str else "rows.parquet")
    table = flags.astype(int if written is str else written).assign(text=texts)
    table.to_csv(path, index=False) if written is str else table.to_parquet(path)
    labels, splits = read(spec_of(str(path), columns={"label": NAMES}))
    assert labels == tuple(sorted(NAMES)), "all columns, in the order that labels of rows have too"
    found = {text: row for split in splits.values() for text, row in by_text(split).items()}
    assert found == dict(zip(texts, flags[sorted(NAMES)].to_numpy().tolist(), strict=True))
    given, _ = read(spec_of(str(path), columns={"label": NAMES}, labels=NAMES))
    assert given == tuple(NAMES)


def test_words_and_tags_in_one_cell_each(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("words,tags\nAda  slept,B-PER O\nShe,O\n")
    data = {"path": "csv", "data_files": str(tmp_path / "train.csv"), "lists": {"words": " ", "tags": " "}}
    spec = spec_of(data, kind="token-classification", columns={"tokens": "words"}).tasks[0]
    train = read_splits("t", spec.data, spec.columns, ["train"], kind=spec.kind)["train"]
    assert (train.inputs, train.answers) == ([["Ada", "slept"], ["She"]], [["B-PER", "O"], ["O"]])


def test_columns_with_one_option_each_are_read_in_every_row(tmp_path: Path) -> None:
    rows = pd.DataFrame({"source": "s", "a": [f"a{n}" for n in range(1500)], "b": "b", "label": "b"})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    columns = ColumnsSpec.model_validate({"options": ["a", "b"]})
    train = read_splits("t", str(tmp_path / "rows.csv"), columns, ["train"], kind="multiple-choice")["train"]
    assert train.columns["options"] == [[f"a{n}", "b"] for n in range(1500)]


@pytest.mark.parametrize(
    ("more", "rows", "says"),
    [
        (
            {"columns": {"label": ["a", "b"]}},
            [[0, 1], [2, 1]],
            "column 'a': 1 row cannot be used: row 2: 2 is neither 0 nor 1",
        ),
        ({"columns": {"label": ["a", "b"]}}, [[0, 1], [1, ""]], "column 'b': 1 row cannot be used: row 2: missing"),
        ({"columns": {"label": ["a", "c"]}}, [[0, 1]], "columns.label is 'c', but there is no such column"),
        (
            {"columns": {"label": "b"}, "lists": {"c": "|"}},
            [["x", "y"]],
            "data.lists names the column 'c', but there is no",
        ),
        (
            {"columns": {"label": "b"}, "lists": {"b": "|"}},
            [["x", 3]],
            "row 1: 3 is not a text. data.lists is for lists",
        ),
        (
            {"columns": {"label": "b"}, "lists": {"b": "|"}},
            [["x", "y||z"]],
            "column 'b': 1 row cannot be used: row 1: label 2, ''",
        ),
    ],
)
def test_what_is_no_list_is_refused(tmp_path: Path, more: dict[str, Any], rows: list[Any], says: str) -> None:
    path = tmp_path / "rows.jsonl"
    frame = pd.DataFrame(rows, columns=["a", "b"]).assign(text="t")
    frame.to_json(path, orient="records", lines=True)
    data = {"path": "json", "data_files": str(path), **({"lists": more["lists"]} if "lists" in more else {})}
    with pytest.raises(InputError) as caught:
        read(spec_of(data, columns=more["columns"]))
    assert says in str(caught.value)


def test_only_multilabel_reads_labels_from_several_columns() -> None:
    with pytest.raises((InputError, StreamFileError), match=r"a classification task reads one column"):
        spec_of("rows.csv", kind="classification", columns={"label": ["a", "b"]})
    with pytest.raises((InputError, StreamFileError), match=r"at least two columns"):
        spec_of("rows.csv", columns={"label": ["a"]})


class _Certificate:
    kind, task, pair, options_from, chat = "seq2seq", "toy", False, None, None


def test_rows_to_predict_are_completed_as_training_data_is() -> None:
    data = {"path": "csv", "data_files": "x", "templates": {"both": "{a}: {b}"}, "lists": {"b": "|"}}
    data["templates"] = {"both": "{a}: {b.0}", "answer": "{c}!"}
    task = TaskSpec.model_validate(
        {"name": "toy", "kind": "seq2seq", "data": data, "columns": {"source": "both", "target": "answer"}}
    )
    certificate: Any = _Certificate()
    columns = TaskColumns.of(certificate, task)
    assert columns.read == {"a", "b", "b.0", "source"}
    assert columns.completed({"a": "x", "b": "y|z"}, "here")["both"] == "x: y"
    for record in ({"source": "x"}, {"both": "x", "a": "y"}, {"a": "x"}):
        assert columns.completed(record, "here") == record
    with pytest.raises(InputError, match=r"\(here\), column 'a': 1 row cannot be used: row 1: 2.5 is float"):
        columns.completed({"a": 2.5, "b": "y"}, "here")


def test_a_part_that_a_row_does_not_have_is_empty_as_in_training(tmp_path: Path) -> None:
    path, template = tmp_path / "rows.jsonl", "{a.b} {t} {c.1}"
    records: list[dict[str, Any]] = [
        {"a": {"b": "B"}, "t": "T", "c": ["x", "y"], "label": "p"},
        {"a": None, "t": "U", "c": None, "label": "q"},
        {"a": {}, "t": "V", "c": ["x"], "label": "p"},
        {"a": {"z": 1}, "t": "W", "c": [], "label": "q"},
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    data = {"path": "json", "data_files": str(path), "templates": {"text": template}}
    spec = TaskSpec.model_validate({"name": "toy", "kind": "classification", "data": data})
    right = ["B T y", "U", "V", "W"]
    assert read_splits("toy", spec.data, spec.columns)["train"].inputs == right
    certificate: Any = _Certificate()
    certificate.kind = "classification"
    columns = TaskColumns.of(certificate, spec)
    assert [row for _, row, *_ in read_rows(path, lambda name: columns, task="toy", task_column=None)] == right
    for whole in records:
        assert columns.completed(whole, "here").keys() == {"a", "t", "c", "label", "text"}
    for record in ({"t": "T", "c": []}, {"a": 1, "t": "T", "c": []}, {"a": ["x"], "t": "T", "c": []}):
        assert "text" not in columns.completed(record, "here")
