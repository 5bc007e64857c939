"""Columns built from items of lists."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest

from continual_petl.errors import InputError
from continual_petl.streams.sources.checks import Where
from continual_petl.streams.sources.templates import fill_templates

WHERE = Where(task="own", split="train", origin="rows")
ROWS: dict[str, list[Any]] = {"id": ["x", "y", "z"], "output": [["a", "b"], ["c"], None], "word": ["pq", "r", "s"]}


@pytest.mark.parametrize(("field", "found"), [("output.0", ["a", "c", ""]), ("output.1", ["b", "", ""])])
def test_items_of_lists_are_found_by_number(field: str, found: list[str]) -> None:
    assert fill_templates(WHERE, ROWS, {"answer": f"{{{field}}}"})["answer"] == found


@pytest.mark.parametrize("field", ["word.0", "output.-1", "output.a", "id.0"])
def test_letters_and_other_keys_are_not_items(field: str) -> None:
    with pytest.raises(InputError, match="there is no column"):
        fill_templates(WHERE, ROWS, {"answer": f"{{{field}}}"})


def test_dates_are_their_text() -> None:
    rows: dict[str, list[Any]] = {"when": [date(2024, 1, 2), None], "took": [timedelta(minutes=3), timedelta(0)]}
    assert fill_templates(WHERE, rows, {"text": "{when} {took}"})["text"] == ["2024-01-02 0:03:00", "0:00:00"]
