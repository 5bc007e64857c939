"""Wrong predictions are shown as text, in a section that is only included on request."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from continual_petl.report.run_facts import RunFacts
from continual_petl.report.write import write_report
from continual_petl.report.wrong_predictions import WrongPredictions, WrongRow
from tests.report.test_page import Page

EVIL = "</td><script>alert(1)</script>"


def found(**more: Any) -> WrongPredictions:
    row = WrongRow(row=3, given=(EVIL, f"pair {EVIL}"), correct="yes", predicted=f"no{EVIL}", probability=0.75)
    content = {"task": "one", "split": "test", "columns": ("text", f"other{EVIL}"), "rows": (row,)}
    return WrongPredictions(**{**content, "num_wrong": 4, "num_rows": 16, **more})


def test_data_texts_are_escaped(facts: RunFacts, tmp_path: Path) -> None:
    asked = dataclasses.replace(facts, wrong=(found(), found(task="two", columns=("text",), why_none=f"Why: {EVIL}")))
    page = Page(write_report(tmp_path / "report", asked))
    assert "wrong-predictions" in page.ids
    assert EVIL in page.texts
    assert f"Why: {EVIL}" in page.texts
    assert "0.7500" in page.texts
    assert "<script>alert" not in page.source
    assert "These are rows of the newest 2 of the 4 tasks." in page.texts


def test_wrong_predictions_are_a_pandas_table() -> None:
    table = found(columns=("text", "row"), rows=(*found().rows, dataclasses.replace(found().rows[0], probability=None)))
    frame = table.to_pandas()
    assert list(frame.columns) == ["row", "text", "input row", "correct", "predicted", "probability"]
    assert frame.iloc[0].tolist() == [3, EVIL, f"pair {EVIL}", "yes", f"no{EVIL}", 0.75]
    assert frame["probability"].isna().tolist() == [False, True]
    empty = found(rows=()).to_pandas()
    assert (len(empty), empty["probability"].dtype) == (0, float)


def test_ids_of_the_data_have_a_column(facts: RunFacts, tmp_path: Path) -> None:
    row = found().rows[0]
    table = found(columns=("id", "text"), rows=(dataclasses.replace(row, id=f"q7{EVIL}"), row))
    frame = table.to_pandas()
    assert list(frame.columns) == ["row", "id", "input id", "text", "correct", "predicted", "probability"]
    assert frame["id"].tolist() == [f"q7{EVIL}", ""]
    page = Page(write_report(tmp_path / "report", dataclasses.replace(facts, wrong=(table,))))
    assert f"q7{EVIL}" in page.texts
    assert "<script>alert" not in page.source
    assert "id" not in found().to_pandas().columns


def test_notebook_shows_wrong_predictions_escaped_with_short_numbers() -> None:
    row = dataclasses.replace(found().rows[0], probability=0.9312000274658203)
    shown = found(rows=(row, dataclasses.replace(row, probability=None)))._repr_html_()
    assert "<td>0.9312</td>" in shown
    assert shown.count("<td></td>") == 1
    assert "<script>" not in shown
    assert "4 of 16 test rows are predicted wrongly" in shown


def test_wrong_predictions_are_not_shown_by_default(facts: RunFacts, tmp_path: Path) -> None:
    assert "wrong-predictions" not in Page(write_report(tmp_path / "report", facts)).ids


def test_next_report_removes_wrong_predictions(facts: RunFacts, tmp_path: Path) -> None:
    write_report(tmp_path, dataclasses.replace(facts, wrong=(found(),)))
    write_report(tmp_path, facts)
    assert not any(
        "alert(1)" in path.read_text("utf-8")
        for path in tmp_path.rglob("*")
        if path.name != "plotly.min.js" and path.is_file()
    )


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "Task 'one': 4 of 16 test rows are predicted wrongly; the first is shown."),
        ({"num_wrong": 1}, "Task 'one': 1 of 16 test rows is predicted wrongly."),
        ({"num_wrong": 0, "rows": ()}, "Task 'one': all 16 test rows are predicted correctly."),
        ({"by_error": True}, "Task 'one': the row with the largest error, of 16 test rows."),
        ({"why_none": "Why."}, "Why."),
    ],
)
def test_section_explains_its_rows(more: dict[str, Any], words: str) -> None:
    assert found(**more).in_words == words
