"""``predict --input`` without a task routes the rows of a file, and writes the task to the output file."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from continual_petl import Run
from continual_petl.cli.main import main
from continual_petl.kind_registry import kind_of
from tests.learned import LearnedRuns
from tests.router.rows import labelled_task, routed_stream, rows_of
from tests.tiny import WORDS

Folder = Callable[..., Path]
STRANGE = " ".join(WORDS[85:86] * 16)


@pytest.fixture(scope="module")
def run(backbone_folder: Folder, learned_runs: LearnedRuns) -> Run:
    tasks = [labelled_task(name) for name in ("low", "high", "pairs")]
    return Run(learned_runs(routed_stream(backbone_folder(), tasks)))


def _records() -> list[dict[str, Any]]:
    rows = [rows_of(name, 2, 7)[number] | {"id": f"{name} {number}"} for number in (0, 1) for name in ("low", "pairs")]
    rows = [{name: value for name, value in row.items() if name != "label"} for row in rows]
    return [*rows, {"text": STRANGE, "id": "strange"}]


def _expected(run: Run) -> list[Any]:
    rows = [(row["text"], row["text_pair"]) if "text_pair" in row else row["text"] for row in _records()]
    return run.predict(rows)


def test_rows_of_a_file_are_routed_like_the_same_rows_in_python(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in _records()))
    assert main(["predict", str(run.store.folder), "--input", str(source), "--output", str(output)]) == 0
    assert f"wrote 5 predictions to {output}, 1 of them unknown" in " ".join(capsys.readouterr().out.split())
    written = [json.loads(line) for line in output.read_text().splitlines()]
    for record, given, answer in zip(written, _records(), _expected(run), strict=True):
        assert given.items() <= record.items()
        assert record["task"] == answer.task
        assert record["task_probability"] == pytest.approx(answer.task_probability, abs=1e-6)
        assert list(record["runners_up"]) == list(answer.runners_up)
        assert record["answer"] == answer.value
    assert written[-1]["task"] is None
    assert main(["predict", str(run.store.folder), "--input", str(source)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["low", "pairs", "low", "pairs", "(unknown)"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables_have_a_column_for_the_task(run: Run, tmp_path: Path, suffix: str) -> None:
    source, output = tmp_path / "rows.csv", tmp_path / f"out{suffix}"
    with source.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "text", "text_pair"])
        writer.writeheader()
        writer.writerows(_records())
    assert main(["predict", str(run.store.folder), "--input", str(source), "--output", str(output)]) == 0
    if suffix == ".csv":
        tasks = [row["task"] or None for row in csv.DictReader(output.read_text().splitlines())]
    else:
        table = pq.read_table(output)
        tasks = table["task"].to_pylist()
        assert dict(table["runners_up"].to_pylist()[-1]).keys() <= {"low", "high", "pairs"}
    assert tasks == [answer.task for answer in _expected(run)]


def test_lines_of_a_text_file_are_rows(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "rows.txt"
    source.write_text(_records()[0]["text"] + "\n")
    assert main(["predict", str(run.store.folder), "--input", str(source)]) == 0
    assert capsys.readouterr().out.startswith("low ")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            {"body": "w1"},
            r"rows.jsonl:1: a row without a task name is read from one of the columns text, source, tokens",
        ),
        ({"text": "w1", "source": "w2"}, "this one fills 'text' and 'source'"),
        (
            {"text": 3},
            "a row without a task name reads the column 'text' as a text; here it holds 3. Write it in this form",
        ),
        ({"text": "w1", "task": "low"}, "the input has a column 'task', and --output adds one of the same name"),
    ],
)
def test_rows_that_cannot_be_read_are_refused(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], record: dict[str, Any], message: str
) -> None:
    source, output = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps(record) + "\n")
    assert main(["predict", str(run.store.folder), "--input", str(source), "--output", str(output)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not output.exists()


def test_a_column_that_an_answer_of_some_task_adds_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = type(kind_of(run.store.certificate("low")))
    monkeypatch.setattr(kind, "details", {"start": "int"})  # as answers to questions have
    source, output = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps({"text": "w1 w2", "start": 7}) + "\n")
    assert main(["predict", str(run.store.folder), "--input", str(source), "--output", str(output)]) == 2
    assert "the input has a column 'start', and --output adds one of the same name" in capsys.readouterr().err
    assert not output.exists()


def test_an_empty_file_is_named(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "rows.csv"
    source.write_text("text\n")
    assert main(["predict", str(run.store.folder), "--input", str(source)]) == 2
    assert f"--input {source}: it has no rows; give a file with one record per row" in capsys.readouterr().err
