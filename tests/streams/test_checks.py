"""Unusable rows are refused, with their numbers."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from continual_petl.errors import InputError
from continual_petl.kinds.regression import targets_of
from continual_petl.streams.sources.cells import TEXTS, text_in
from continual_petl.streams.sources.checks import Cells, Where, check_rows, contradiction_notice, overlap_notice

WHERE = Where(task="stars", split="test", origin="test.jsonl")


def test_valid_texts_pass() -> None:
    assert Cells(WHERE, "text", ["a", " b ", "0"]).read(text_in, TEXTS) == ["a", " b ", "0"]


@pytest.mark.parametrize(
    ("value", "what"),
    [(None, "missing"), ("", "empty"), (" \n\t", "empty"), (3, "3 is not a text"), (["a"], "['a'] is not a text")],
)
def test_invalid_texts_are_refused(value: object, what: str) -> None:
    expected = f"task 'stars', split test (test.jsonl), column 'body': 1 row cannot be used: row 2: {what}. Every row"
    with pytest.raises(InputError, match=re.escape(expected)):
        Cells(WHERE, "body", ["a", value]).read(text_in, TEXTS)


def test_regression_targets_are_float64() -> None:
    given: list[Any] = [
        1,
        2.5,
        "3.25",
        "-1e2",
        0,
        0.1,
        1_600_000_001,
        "1600000001.5",
        -(2**53),
        Decimal("0.1"),
        np.int64(7),
        1e300,
    ]
    targets = targets_of(Cells(WHERE, "score", given))
    assert targets.dtype == np.float64
    assert targets.tolist() == [float(value) for value in given]


@pytest.mark.parametrize(
    "value",
    [
        2**53 + 1,
        "9007199254740993",
        -(2**60) - 1,
        " +09007199254740993",
        "9007199254740993.5",
        Decimal("9007199254740993"),
        "9_007_199_254_740_993",
    ],
)
def test_numbers_that_double_precision_rounds_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"row 2: .* has too many digits for double precision, where it is"):
        targets_of(Cells(WHERE, "score", [0.0, value]))
    assert targets_of(Cells(WHERE, "score", [2**60, 2**53 + 2])).tolist() == [2**60, 2**53 + 2]
    assert targets_of(Cells(WHERE, "score", ["1e23", f"{1e23:f}"])).tolist() == [1e23, 1e23]


@pytest.mark.parametrize(("value", "single"), [(0.1, 0.10000000149011612), (1_600_000_001, 1_600_000_000.0)])
def test_targets_of_old_banks_are_rounded_as_before(value: Any, single: float) -> None:
    targets = targets_of(Cells(WHERE, "score", [value]), single_precision=True)
    assert targets.dtype == np.float32
    assert targets.tolist() == [single]
    with pytest.raises(InputError, match="1e\\+39 is not a finite number in single precision"):
        targets_of(Cells(WHERE, "score", [1e39]), single_precision=True)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (None, "missing"),
        ("", "missing"),
        ("high", "'high' is not a number"),
        (True, "True is not a number"),
        ([1.0], "[1.0] is not a number"),
        (float("nan"), "nan is not a finite"),
        ("nan", "'nan' is not a finite"),
        (float("inf"), "inf is not a finite"),
        (1.1e300, "1.1e+300 is not a finite number up to 1e+300"),
        (10**400, "is not a finite"),
    ],
)
def test_invalid_targets_are_refused(value: Any, what: str) -> None:
    with pytest.raises(InputError, match=rf"column 'score': 1 row .*row 3: .*{re.escape(what)}"):
        targets_of(Cells(WHERE, "score", [0.0, 1.0, value]))


def test_empty_split_is_refused() -> None:
    check_rows(WHERE, 1)
    with pytest.raises(InputError, match=r"split test \(test.jsonl\): it has 0 rows but needs at least 1"):
        check_rows(WHERE, 0)


def test_overlap_is_counted_per_row() -> None:
    assert overlap_notice("stars", ["a", "b"], ["c"], "test") is None
    notice = overlap_notice("stars", ["a", "b"], ["a", "a", "c"], "test")
    assert notice is not None
    assert "2 of 3 test rows have the text of a training row" in notice


def test_inputs_with_several_labels_are_counted() -> None:
    keys, labels = ["a", "b", "a", "c", "b", "a", "b"], ["x", "x", "x", "x", "y", "z", "x"]
    where = Where(task="stars", split="train", origin="a.jsonl", numbers=(0, 1, 2, 3, 4, 5, 9))
    assert contradiction_notice(where, ["a", "b", "a"], ["x", "y", "x"]) is None
    assert contradiction_notice(where, keys, labels) == (
        "task 'stars': 2 texts of the train split, in 6 of its 7 rows, have more than one label, such as that of "
        "row 2 ('x') and row 5 ('y')."
    )
    notice = contradiction_notice(where, keys[:5], labels[:5], "image")
    assert notice is not None
    assert "1 image of the train split, in 2 of its 5 rows, has more than one label" in notice
