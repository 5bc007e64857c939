"""``predict --output`` keeps every column of its input, in every format, and adds the answers."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from continual_petl.cli.main import main
from continual_petl.engine.run import Run
from tests.cli.formats import write
from tests.learned import LearnedRuns
from tests.streams.strange_files import write_table
from tests.streams_in_code import regression_task, stream, task, task_of_kind, with_columns

TEXTS = ["w10 w11", 'w1, "w2"\nw3', "w4"]
ROWS = [{"id": number, "text": text, "by": None if number else "Ada"} for number, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def run(backbone_folder: Callable[..., Path], learned_runs: LearnedRuns) -> Path:
    tasks = [with_columns(task("yesno", num_rows=16), text="question"), regression_task("number", num_rows=16)]
    tasks += [task_of_kind("multiple-choice", "choices", num_rows=16)]
    return learned_runs(stream(backbone_folder(), tasks, training={"epochs": 1}))


def predicted(run: Path, source: Path, out: str, *which: str) -> Path:
    target = source.with_name(f"answers{out}")
    words = which or ("--task", "yesno")
    assert main(["predict", str(run), *words, "--input", str(source), "--output", str(target)]) == 0
    return target


def parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    return list(pq.read_table(path).to_pylist())


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_input_columns_are_kept_and_answers_appended(run: Path, suffix: str, tmp_path: Path) -> None:
    source = tmp_path / f"rows{suffix}"
    write(source, ROWS)
    values = [answer.value for answer in Run(run).predict(TEXTS, "yesno")]
    given = ROWS if suffix != ".csv" else [{"id": str(r["id"]), "text": r["text"], "by": r["by"] or ""} for r in ROWS]
    wanted = [{**row, "answer": value} for row, value in zip(given, values, strict=True)]
    found = [json.loads(line) for line in predicted(run, source, ".jsonl").read_text().splitlines()]
    assert [list(row) for row in found] == [["id", "text", "by", "answer", "probabilities", "truncated"]] * 3
    assert [{key: row[key] for key in wanted[0]} for row in found] == wanted
    assert [{key: row[key] for key in wanted[0]} for row in parquet(predicted(run, source, ".parquet"))] == wanted
    with predicted(run, source, ".csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(int(row["id"]), row["text"], row["by"] or None) for row in rows] == [tuple(row.values()) for row in ROWS]
    assert [row["answer"] for row in rows] == values


def test_probabilities_of_the_options_of_a_row_are_in_every_format(run: Path, tmp_path: Path) -> None:
    source, rows = (
        tmp_path / "rows.jsonl",
        [{"source": "w1", "options": ["w2", "w3 w4"]}, {"source": "w5", "options": ["w6", "w7", "w8"]}],
    )
    write(source, rows)
    wanted = [
        (each.value, each.probabilities)
        for each in Run(run).predict([(row["source"], row["options"]) for row in rows], "choices")
    ]
    with predicted(run, source, ".csv", "--task", "choices").open(newline="") as file:
        found = [(row["answer"], json.loads(row["probabilities"])) for row in csv.DictReader(file)]
    assert found == wanted
    table = parquet(predicted(run, source, ".parquet", "--task", "choices"))
    assert [(row["answer"], dict(row["probabilities"])) for row in table] == wanted


def test_column_names_are_kept(run: Path, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    write(source, [{"question": "w1", "task": "yesno", "id": 7}, {"text": "w2", "task": "number"}])
    found = [
        json.loads(line) for line in predicted(run, source, ".jsonl", "--task-column", "task").read_text().splitlines()
    ]
    assert [list(row) for row in found] == [
        ["question", "task", "id", "answer", "probabilities", "truncated"],
        ["text", "task", "answer", "truncated"],
    ]
    table = parquet(predicted(run, source, ".parquet", "--task-column", "task"))
    assert [(row["question"], row["text"], row["id"]) for row in table] == [("w1", None, 7), (None, "w2", None)]


def test_parquet_types_and_json_values_are_preserved(run: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "text": pa.array(["w1", "w2"]).dictionary_encode(),
        "when": pa.array([datetime(2024, 5, 6, 7), None], pa.timestamp("ms")),
        "price": pa.array([Decimal("1.10"), Decimal("2.00")]),
        "small": pa.array([1, 2], pa.int8()),
        "raw": pa.array([b"\x00\xff", b""]),
        "deep": pa.array([{"a": [1, 2]}, {"a": []}]),
    }
    source = tmp_path / "rows.parquet"
    pq.write_table(pa.table(columns), source)
    written = pq.read_table(predicted(run, source, ".parquet"))
    assert written.select(list(columns)).equals(pq.read_table(source))
    pq.write_table(pa.table(columns).drop_columns("raw"), source)
    with predicted(run, source, ".csv").open(newline="") as file:
        row = next(csv.DictReader(file))
    assert (row["when"], row["price"], row["deep"]) == ("2024-05-06T07:00:00", "1.10", '{"a": [1, 2]}')

    values: dict[str, list[Any]] = {
        "long": [2**60 + 1, 3],
        "longer": [2**70, 3],
        "half": [1, 0.5],
        "unsafe": [2**53 + 1, 0.5],
        "flag": [True, None],
        "tags": [["a"], []],
        "mixed": ["a", 1],
        "none": [None, None],
    }
    records = [{"text": "w1"} | {name: column[number] for name, column in values.items()} for number in range(2)]
    source = tmp_path / "rows.jsonl"
    write(source, records)
    found = parquet(predicted(run, source, ".parquet"))
    as_json = {"longer": [str(2**70), "3"], "unsafe": [str(2**53 + 1), "0.5"], "mixed": ["a", "1"]}
    assert {name: [row[name] for row in found] for name in values} == values | as_json


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"text": "w1", "answer": "x"}', "rows.jsonl:2: the input has a column 'answer', and --output adds one"),
        ('{"text": "w1", "probabilities": 1}', "has a column 'probabilities', and --output adds one of the same name"),
        (
            '{"text": "w1", "id": "a\\ud800"}',
            r":2: column 'id' holds '\ud800', an unpaired surrogate, which is not valid",
        ),
    ],
)
def test_uncopyable_column_is_refused_before_predicting(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, says: str
) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text('{"text": "w1"}\n' + line + "\n")
    argv = ["predict", str(run), "--task", "yesno", "--input", str(source)]
    assert main([*argv, "--output", str(tmp_path / "answers.csv")]) == 2
    assert says in " ".join(capsys.readouterr().err.split())
    assert main([*argv, "--json"]) == 0, "--json copies no columns"
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_bytes_are_only_copied_to_parquet(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "rows.parquet"
    write(source, [{"text": "w1", "raw": b"\x00"}])
    argv = ["predict", str(run), "--task", "yesno", "--input", str(source), "--output", str(tmp_path / "a.jsonl")]
    assert main(argv) == 2
    assert "column 'raw' holds a value of type bytes, which .jsonl and .csv cannot hold" in capsys.readouterr().err


@pytest.mark.parametrize(("suffix", "out"), [(".feather", ".jsonl"), (".feather", ".csv"), (".parquet", ".parquet")])
def test_times_that_python_does_not_have_are_copied(run: Path, suffix: str, out: str, tmp_path: Path) -> None:
    """The year 287,168 (of `numpy.datetime64`) is one of arrow; only columns that are read need to be texts or numbers."""
    import pyarrow as pa

    when = pa.array([9 * 10**12, None, 0], pa.timestamp("s"))
    source = write_table(tmp_path / f"rows{suffix}", pa.table({"text": ["w1", "w2", "w3"], "when": when}))
    found = predicted(run, source, out)
    if out == ".parquet":
        import pyarrow.parquet as pq

        assert pq.read_table(found)["when"].cast("timestamp[s]").cast("int64").to_pylist() == [9 * 10**12, None, 0]
        return
    rows = [json.loads(line) for line in found.read_text().splitlines()] if out == ".jsonl" else []
    with found.open(newline="") as file:
        rows = rows or list(csv.DictReader(file))
    assert [row["when"] or None for row in rows] == ["287168-08-24T16:00:00", None, "1970-01-01T00:00:00"]
