"""Rows are named as the data names them: by their number in their file, and by the user's own id if there is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import normalizers

from continual_petl.errors import InputError
from continual_petl.streams.preparation.prepare import check_again, check_data, prepare_task
from continual_petl.streams.schema.stream_spec import ColumnsSpec, DataSpec, StreamSpec
from continual_petl.streams.sources.checks import Where, row_in
from continual_petl.streams.sources.read_splits import read_splits
from tests.tiny import make_tokenizer

LATER = 1500
"""A row beyond the first ones, of which all columns are kept."""


def rows(name: str = "id", number: int = 1600) -> list[dict[str, Any]]:
    found = [{name: f"q{at}", "text": f"w{at % 30} w1", "label": "ab"[at % 2]} for at in range(number)]
    found[LATER]["text"] = found[3]["text"] = ""
    return found


def spec_of(data: Any, **more: Any) -> StreamSpec:
    task = {"name": "t", "kind": "classification", "data": data, **more}
    return StreamSpec.model_validate({"name": "s", "backbone": "minilm", "tasks": [task]})


def refusal(data: Any, **more: Any) -> str:
    spec = spec_of(data, **more)
    with pytest.raises(InputError) as caught:
        check_data(spec, spec.tasks[0])
    return str(caught.value)


def written(folder: Path, kind: str, content: list[dict[str, Any]]) -> str:
    path = folder / f"train.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(content), path)
    elif kind == "csv":
        lines = [",".join(map(str, row.values())) for row in content]
        path.write_text("\n".join([",".join(content[0]), *lines]) + "\n")
    elif kind == "json":
        path.write_text(json.dumps(content))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in content))
    return str(path)


@pytest.mark.parametrize(
    ("kind", "name"), [("csv", "guid"), ("jsonl", "id"), ("json", "_id"), ("parquet", "example_id")]
)
def test_errors_name_rows_by_the_column_of_ids(tmp_path: Path, kind: str, name: str) -> None:
    said = refusal(written(tmp_path, kind, rows(name)))
    assert f"2 rows cannot be used: row 4 ({name} 'q3'): empty; row {LATER + 1} ({name} 'q{LATER}'): empty." in said


def test_errors_about_labels_and_of_several_files_name_the_ids(tmp_path: Path) -> None:
    names = []
    for part in range(2):
        content = [{"id": 100 * part + at, "text": f"w{at}", "label": "ab"[at % 2]} for at in range(4)]
        content[2]["label"] = None if part else "a"
        (tmp_path / str(part)).mkdir()
        names.append(written(tmp_path / str(part), "jsonl", content))
    said = refusal({"path": "json", "data_files": names})
    assert "row 7 (id 102): missing" in said


@pytest.mark.parametrize(
    ("split", "says"),
    [
        ("train", "row 4 (id 'q3'): empty; row 1501 (id 'q1500'): empty."),
        ("train[2:]", "row 2 (id 'q3'): empty; row 1499 (id 'q1500'): empty."),
        ("test[:2]+train[2:7]", "row 4 (id 'q3'): empty."),
        ("train[2:4]+test+train[2:4]", "row 2 (id 'q3'): empty; row 6 (uid 'q3'): empty; row 10 (id 'q3'): empty."),
    ],
)
def test_errors_about_parts_of_files_name_the_ids(tmp_path: Path, split: str, says: str) -> None:
    files = {}
    for name, content in (("train", rows()), ("test", rows("uid")[:6])):
        (tmp_path / name).mkdir()
        files[name] = written(tmp_path / name, "jsonl", content)
    assert says in refusal({"path": "json", "data_files": files, "split": {"train": split}})


def test_rows_in_python_have_ids() -> None:
    assert "row 4 (uuid 'q3'): empty" in refusal({"train": rows("uuid")})


def test_without_such_a_column_rows_have_numbers(tmp_path: Path) -> None:
    said = refusal(written(tmp_path, "csv", rows("number_of_question")))
    assert f"row 4: empty; row {LATER + 1}: empty." in said


def test_no_id_is_better_than_the_id_of_another_row(tmp_path: Path) -> None:
    content = [*rows(number=LATER + 1)]
    path = Path(written(tmp_path, "jsonl", content))
    lines = path.read_text().splitlines()
    lines[0] = lines[0].replace('"q0"', r'"\ud800"')  # this id cannot be read
    path.write_text("\n".join(lines) + "\n")
    assert f"row 4: empty; row {LATER + 1}: empty." in refusal(str(path))


def test_ids_are_not_read_unless_a_row_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("continual_petl.streams.sources.checks.ids_in_files", None)
    good = [row for row in rows() if row["text"]]
    spec = spec_of(written(tmp_path, "csv", good))
    assert check_data(spec, spec.tasks[0]) == ("a", "b")


def test_rows_left_out_do_not_change_the_numbers_of_the_others(tmp_path: Path) -> None:
    content = [{"id": f"q{at}", "text": f"w{at}", "label": "abc"[at % 3]} for at in range(30)]
    spec = spec_of(
        written(tmp_path, "jsonl", content), labels=["b", "c"], all_labels=["a", "b", "c"], limits={"train": 5}
    )
    train = check_again(spec, spec.tasks[0], split="train", labels=("b", "c"))
    assert len(train) == 5
    names = train.where.named(range(5))
    assert [content[name.number - 1]["text"] for name in names] == train.inputs
    assert [content[name.number - 1]["id"] for name in names] == [name.id and name.id.value for name in names]


def test_rows_that_cannot_be_tokenised_have_their_numbers_in_the_file(tmp_path: Path) -> None:
    words = [{"id": f"q{at}", "tokens": ["w1", f"w{at}"], "tags": ["O", "B-X"]} for at in range(30)]
    words[17]["tokens"] = ["w1", "_"]
    path = written(tmp_path, "jsonl", words)
    task = {"name": "t", "kind": "token-classification", "data": path}
    spec = StreamSpec.model_validate({"name": "s", "backbone": "minilm", "tasks": [task]})
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("_", "")
    with pytest.raises(InputError, match=r"train\.jsonl\), row 18 \(id 'q17'\): word 2, '_', gives no tokens"):
        prepare_task(spec, spec.tasks[0], tokenizer, 16)


def test_a_row_of_no_file_is_named_by_its_number() -> None:
    assert row_in("rows to predict", 2) == "rows to predict, row 3"
    assert (
        row_in(Where(task="t", split="train", origin="Hub a/b", ids={}), 2) == "task 't', split train (Hub a/b), row 3"
    )
    known = Where(task="t", split="train", origin="Hub a/b", ids={"idx": [5, 6, 7]}).take([2, 0])
    assert row_in(known, 0).endswith("row 3 (idx 7)")


def names_of(data: Any, columns: ColumnsSpec | None = None, kind: str = "classification") -> tuple[Where, list[Any]]:
    rows = read_splits("t", data, columns or ColumnsSpec(), kind=kind)["train"]
    return rows.where, rows.inputs


def test_ids_are_read_as_the_rows_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a row would be shown with the id of another one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.txt").write_text("id,text,label\n7,first,a\n8,second,b\n")
    where, inputs = names_of(DataSpec(path="csv", data_files="rows.txt"))
    assert (inputs, str(where.named([1])[0])) == (["first", "second"], "row 2 (id '8')")
    (tmp_path / "words.json").write_text('{"words": ["A", "cat"], "tags": ["O", "O"], "id": ["x", "y"]}')
    where, inputs = names_of("words.json", ColumnsSpec(tokens="words"), "token-classification")
    assert (inputs, str(where.named([0])[0])) == ([["A", "cat"]], "row 1")
    (tmp_path / "a, b.csv").write_text("id,text,label\n7,first,a\n8,second,b\n")
    assert str(names_of("a, b.csv")[0].named([1])[0]) == "row 2 (id '8')"


def test_an_expression_that_is_a_path_too_has_the_ids_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text("id,text,label\n7,first,a\n8,second,b\n")
    datasets.Dataset.from_dict({"id": ["other"] * 2, "text": ["x"] * 2}).save_to_disk("train")
    spec = DataSpec(path="csv", data_files={"train": "mine.csv"}, split={"train": "train"})
    assert str(names_of(spec)[0].named([1])[0]) == "row 2 (id '8')"


def test_files_that_have_changed_have_no_ids(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,text,label\n7,first,a\n8,second,b\n")
    where, _ = names_of(str(path))
    assert str(where.named([0])[0]) == "row 1 (id '7')"
    path.write_text("id,text,label\n8,second,b\n7,first,a\n")
    assert str(where.named([0])[0]) == "row 1"
