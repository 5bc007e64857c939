"""Cells of written csv files are no formulas and no control characters, unless --raw-csv is given."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from continual_petl.cli.columns_out import harmless
from continual_petl.cli.main import main
from continual_petl.cli.predictions_out import write_records

# OWASP's list (https://owasp.org/www-community/attacks/CSV_Injection), with the full-width forms.
SIGNS = "=+-@\t\r\n＝＋－＠"  # noqa: RUF001
PAYLOADS = [
    "=cmd|' /C calc'!A0",
    '=HYPERLINK("http://x","y")',
    "+1+1",
    "-1+1",
    "@SUM(1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "＝1+1",  # noqa: RUF001
    "＋1+1",  # noqa: RUF001
    "－1+1",  # noqa: RUF001
    "＠SUM(1)",  # noqa: RUF001
    " =1+1",
    "\ufeff=1+1",
    "\u200b=1+1",
    "\x00=1+1",
    "'=1+1",
    "- a point of a list",
    "--",
    "-1e",
    "+49 151 1234",
    "-0.5;=1",
]
KEPT = [
    "",
    "-0.5",
    "+1",
    "-1e-07",
    "1.",
    ".5",
    "a=b",
    "2-1",
    "'",
    "'tis",
    "d'accord",
    "Zürich",
    "a\tb\nc",
    "[1, 2]",
    "a@b.c",
]


@pytest.mark.parametrize("text", PAYLOADS)
def test_formulas_get_one_mark_in_front(text: str) -> None:
    assert harmless(text).replace("\\u0000", "\x00") == f"'{text}"


@pytest.mark.parametrize("text", KEPT)
def test_other_texts_are_unchanged(text: str) -> None:
    assert harmless(text) == text


@given(st.text(st.sampled_from(SIGNS + "'1.e \x00\x1b\x7f\x9bab\ufeff")))
def test_no_cell_is_a_formula_or_has_control_characters(text: str) -> None:
    written = harmless(text)
    assert not any(char < " " and char not in "\t\n\r" for char in written)
    assert not any("\x7f" <= char <= "\x9f" for char in written)
    if written[:1] in tuple(SIGNS):
        float(written)  # a plain number, which no spreadsheet executes
    plain = text.translate({ord(char): f"\\u{ord(char):04x}" for char in "\x00\x1b\x7f\x9b"})
    assert written in (plain, f"'{plain}")


def cells(path: Path) -> list[list[str]]:
    return list(csv.reader(io.StringIO(path.read_text("utf-8"), newline="")))


RECORD: dict[str, Any] = {
    "text": "=1+1",
    "=head": "\x1b[2J",
    "answer": -0.5,
    "label": "@x",
    "list": ["=1", "\x7f"],
    "none": None,
    "flag": True,
}


def test_headers_texts_and_json_are_escaped_and_numbers_are_numbers(tmp_path: Path) -> None:
    write_records(tmp_path / "out.csv", [[RECORD]], {name: {"text"} for name in RECORD})
    head, row = cells(tmp_path / "out.csv")
    assert head == ["text", "'=head", "answer", "label", "list", "none", "flag"]
    assert row == ["'=1+1", "\\u001b[2J", "-0.5", "'@x", '["=1", "\\u007f"]', "", "true"]
    assert json.loads(row[4]) == RECORD["list"]


def test_raw_csv_keeps_everything(tmp_path: Path) -> None:
    write_records(tmp_path / "out.csv", [[RECORD]], {name: {"text"} for name in RECORD}, raw_csv=True)
    head, row = cells(tmp_path / "out.csv")
    assert head == list(RECORD)
    assert row[:4] == ["=1+1", "\x1b[2J", "-0.5", "@x"]


def test_other_formats_keep_texts(tmp_path: Path) -> None:
    for name in ("out.jsonl", "out.parquet"):
        write_records(tmp_path / name, [[{"text": "=1+1"}]], {"text": {"text"}})
    assert json.loads((tmp_path / "out.jsonl").read_text("utf-8")) == {"text": "=1+1"}
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == [{"text": "=1+1"}]


def test_raw_csv_needs_a_csv_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "nowhere", "--task", "x", "--raw-csv", "--output", "x.jsonl", "a"]) == 2
    assert "--raw-csv: only for --output FILE.csv" in capsys.readouterr().err
