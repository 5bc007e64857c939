"""Mistakes in the files and options of learn and predict."""

from __future__ import annotations

import json

import pytest

from tests.cli.bench import Bench, Case

_PREDICT = ("predict", "FOLDER/run", "--task", "single")
TASK = "name: third\nkind: KIND\ndata: data/nope\ntraining: {epochs: 0}\n"
CASES = [
    Case(
        "learn, keys",
        ["t.yaml:2: key kind: got 'KIND'", "t.yaml:4: key training.epochs"],
        files={"t.yaml": TASK},
        command=["learn", "FOLDER/run", "FOLDER/t.yaml"],
    ),
    Case(
        "learn, data",
        ["task 'third', data FOLDER/data/nope: there is no such"],
        files={"t.yaml": TASK.replace("KIND", "regression").replace("0", "1")},
        command=["learn", "FOLDER/run", "FOLDER/t.yaml"],
    ),
    Case("learn, no file", ["nope.yaml: there is no such file"], command=["learn", "FOLDER/run", "FOLDER/nope.yaml"]),
    Case(
        "learn, rows",
        [
            "rows.csv: this is a file with rows, but the file of one task is expected here",
            "`continual-petl init FOLDER/rows.csv` drafts a stream that learns them",
        ],
        files={"rows.csv": "text,label\na,b\n"},
        command=["learn", "FOLDER/run", "FOLDER/rows.csv"],
    ),
    Case(
        "no folder",
        ["FOLDER/rum: no run here (no such folder in "],
        command=["predict", "FOLDER/rum", "--task", "x", "w1"],
    ),
    Case(
        "no run",
        ["FOLDER/data: no run here (no stream.yaml in it)", "continual-petl run"],
        command=["predict", "FOLDER/data", "--task", "x", "w1"],
    ),
    Case(
        "output",
        ["--output FOLDER/no/a.csv: there is no folder FOLDER/no; create it"],
        options=["w1", "--output", "FOLDER/no/a.csv"],
        command=_PREDICT,
    ),
    Case(
        "output is a folder",
        ["--output FOLDER/a.csv: this is a folder"],
        files={"a.csv/x": ""},
        options=["w1", "--output", "FOLDER/a.csv"],
        command=_PREDICT,
    ),
    Case(
        "output suffix",
        ["ends in '.xml'; allowed: .jsonl, .csv, .parquet"],
        options=["w1", "--output", "FOLDER/a.xml"],
        command=_PREDICT,
    ),
    Case(
        "input",
        ["--input FOLDER/no.csv: there is no such file; check"],
        options=["--input", "FOLDER/no.csv"],
        command=_PREDICT,
    ),
    Case(
        "input json",
        ["in.jsonl:2: not JSON"],
        files={"in.jsonl": '{"text": "a"}\n{nope\n'},
        options=["--input", "FOLDER/in.jsonl"],
        command=_PREDICT,
    ),
    Case(
        "input column",
        ["in.csv:2: task 'single' reads the column 'text'; found 'body'. Rename the column to match."],
        files={"in.csv": "body\na\n"},
        options=["--input", "FOLDER/in.csv"],
        command=_PREDICT,
    ),
    Case(
        "input ragged",
        ["in.csv:3: 2 fields instead of 1. The header names 1 column ('text')", "double quotes"],
        files={"in.csv": "text\na\nb, c\n"},
        options=["--input", "FOLDER/in.csv"],
        command=_PREDICT,
    ),
    Case(
        "input binary",
        ["in.csv: byte 0 is a NUL byte, so this is binary data: give a file of UTF-8 text"],
        files={"in.csv": bytes(range(256))},
        options=["--input", "FOLDER/in.csv"],
        command=_PREDICT,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_invalid_command_is_refused(bench: Bench, case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    bench.refuses(case, capsys)
    assert not (bench.folder / "no").exists()


def test_texts_with_line_breaks_are_read_whole(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Other line separators, such as U+2028, and line breaks inside quotation marks belong to the text."""
    (bench.folder / "in.csv").write_text('text,n\n"w1\nw2",1\nw3\u2028w4,2\n', encoding="utf-8")
    (bench.folder / "in.jsonl").write_text('{"text": "w1\u2028w2"}\n\n{"text": "w3"}\n', encoding="utf-8")
    for name, texts in (("in.csv", ["w1\nw2", "w3\u2028w4"]), ("in.jsonl", ["w1\u2028w2", "w3"])):
        assert bench.main("predict", "FOLDER/run", "--task", "single", "--input", f"FOLDER/{name}", "--json") == 0
        assert [record["text"] for record in json.loads(capsys.readouterr().out)] == texts
