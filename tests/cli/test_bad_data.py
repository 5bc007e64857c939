"""Invalid data is refused before training; the message names task, split, row and column."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from tests.cli.bench import DATA, NO_FILES, ROWS, SPLITS, Bench, Case, csv_lines, json_lines

KIND = "kind: classification\n"
TRAIN = "data/other/train.jsonl"
REGRESSION = [(KIND, "kind: regression\n")]


def numbers(value: Any) -> dict[str, str | bytes | None]:
    """Return the files of a regression task whose third training row has this target."""
    rows = [{"text": row["text"], "label": float(number)} for number, row in enumerate(ROWS)]
    wrong = [row if number != 2 else row | {"label": value} for number, row in enumerate(rows)]
    return {f"data/other/{split}.jsonl": json_lines(wrong if split == "train" else rows) for split in SPLITS}


def table(*lines: str) -> dict[str, str | bytes | None]:
    """Return the changes that replace the data files by one CSV file of training rows."""
    return NO_FILES | {"data/other/train.csv": csv_lines(*lines)}


def labels(values: list[Any]) -> str:
    """Return training rows with these labels in turn."""
    return json_lines([row | {"label": values[number % len(values)]} for number, row in enumerate(ROWS)])


IN = "task 'other', split train (FOLDER/data/other/train.jsonl), column"
CASES = [
    Case(
        "column",
        [
            "columns.text is 'body', but there is no such column; the columns are 'text', 'label'",
            "columns: {text: ...}",
        ],
        [(DATA, f"{DATA}\n    columns: {{text: body}}")],
    ),
    Case(
        "file",
        ["task 'other', data FOLDER/data/nope: there is no such file or folder; FOLDER/data holds other, single"],
        [(DATA, "data: data/nope")],
    ),
    Case(
        "dry run",
        ["task 'other', data FOLDER/data/nope: there is no such file"],
        [(DATA, "data: data/nope")],
        options=["--dry-run"],
    ),
    Case(
        "label only in test",
        [
            "task 'other', split test (FOLDER/data/other/test.jsonl), column 'label': 1 row",
            "row 2: label 'maybe' is unknown",
            "'no', 'yes'",
            "write all classes",
        ],
        files={"data/other/test.jsonl": json_lines([ROWS[0], ROWS[1] | {"label": "maybe"}])},
    ),
    Case(
        "label number",
        [f"{IN} 'label': 8 rows", "row 3: label '2' is unknown", "or their positions 0 to 1"],
        [(DATA, f"{DATA}\n    labels: [no, yes]")],
        {TRAIN: labels([0, 1, 2])},
    ),
    Case(
        "label missing",
        [f"{IN} 'label': 12 rows", "row 2: missing", "repair or remove"],
        files={TRAIN: labels(["no", None])},
    ),
    Case(
        "label file",
        ["task 'other', labels: cannot read FOLDER/names.json", "give a list"],
        [(DATA, f"{DATA}\n    labels: names.json")],
    ),
    Case(
        "one class",
        [f"{IN} 'label': all rows have the label 'no'", "at least two classes"],
        files={TRAIN: labels(["no"])},
    ),
    Case(
        "empty split",
        ["task 'other', FOLDER/data/other/test.jsonl: this file is empty (0 bytes): download or write it again"],
        files={"data/other/test.jsonl": ""},
    ),
    Case("empty table", ["split train (FOLDER/data/other/train.csv): it has 0 rows but needs"], files=table()),
    Case(
        "empty text",
        [f"{IN} 'text': 1 row cannot be used: row 2: empty. Every row needs a text"],
        files={TRAIN: json_lines([ROWS[0], {"text": " ", "label": "no"}, {"text": "w1", "label": "yes"}])},
    ),
    Case(
        "number as text",
        [f"{IN} 'text': 2 rows", "row 1: 5 is not a text"],
        files={TRAIN: json_lines([{"text": 5, "label": "no"}, {"text": 6, "label": "yes"}])},
    ),
    Case(
        "NaN",
        [f"{IN} 'label': 1 row", "row 3: nan is not a finite number", "repair or remove"],
        REGRESSION,
        numbers(float("nan")),
    ),
    Case(
        "missing number", [f"{IN} 'label': 1 row", "row 3: missing", "needs a finite number"], REGRESSION, numbers(None)
    ),
    Case(
        "number in words",
        ["column 'label': 1 row", "row 2: 'many' is not a number"],
        REGRESSION,
        table("a,1", "b,many", "c,2"),
    ),
    Case("empty cell in a table", ["column 'label': 1 row", "row 2: missing"], REGRESSION, table("a,1", "b,", "c,2")),
    Case(
        "not compressed",
        ["task 'other', FOLDER/data/other/train.jsonl.gz: the name ends in .gz, but the file is not", "rename it"],
        files=NO_FILES | {f"{TRAIN}.gz": b"no"},
    ),
    Case(
        "truncated gz",
        ["task 'other'", "train.csv.gz", "ended before the end-of-stream marker"],
        files=NO_FILES
        | {
            "data/other/train.csv.gz": gzip.compress(
                ("text,label\n" + "".join(f"{number},{number}\n" for number in range(2000))).encode()
            )[:-30]
        },
    ),
    Case(
        "parquet",
        [
            "task 'other', FOLDER/data/other/train.parquet: cannot be read as parquet: ",
            "Copy, download or write it again",
        ],
        files=NO_FILES | {"data/other/train.parquet": b"PAR1 no"},
    ),
    Case(
        "json",
        [
            f"task 'other', FOLDER/{TRAIN}: 1 line cannot be read: line 2: not JSON (Expecting value, at character 9)",
            "Repair it, or leave it out",
        ],
        files={TRAIN: '{"text": "a", "label": "no"}\n{"text": \n'},
    ),
    Case(
        "json of test",
        ["task 'other', FOLDER/data/other/test.jsonl: 1 line cannot be read: line 1: not a JSON object"],
        files={"data/other/test.jsonl": "3\n"},
    ),
    Case(
        "ragged",
        [
            "train.csv: 2 lines cannot be read: line 3: 3 fields instead of 2; line 6: 1 field instead of 2.",
            "The header names 2 columns ('text', 'label')",
            "double quotes",
        ],
        files=table("a,no", "b, c,yes", '"d\n",no', "e"),
    ),
    Case(
        "ragged throughout",
        ["3 lines cannot be read: line 2: 3 fields instead of 2; line 3: 3 fields instead of 2"],
        files=table("a,b,no", "c,d,yes", "e,f,no"),
    ),
    Case(
        "built-in",
        ["task 'other', data: There is no embedded task 'x'", "give one of these"],
        [(DATA, "data: {path: embedded, name: x}")],
    ),
    Case(
        "hub",
        ["task 'other', data: cannot load 'no-such/data' from the Hub", "put the files into a folder"],
        [(DATA, "data: {path: no-such/data}")],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_invalid_data_is_refused(bench: Bench, case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    bench.refuses(case, capsys)


@pytest.mark.slow
def test_table_with_row_numbers_is_accepted(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Data frames are often written with their index, in a column without a name. Long texts are accepted too."""
    lines = [f"{number},{row['text']},{row['label']}" for number, row in enumerate(ROWS)]
    lines.append(f"99,{'w1 ' * 60_000},yes")
    bench.apply(Case("", [], [], NO_FILES | {"data/other/train.csv": "\n".join([",text,label", *lines]) + "\n"}))
    assert bench.main("run", "FOLDER/stream.yaml", "--run-dir", "FOLDER/run", "--dry-run") == 0
    assert "1 of 23 train rows are longer than 64 tokens" in capsys.readouterr().out
