"""Labels: names, numbers, indices, and invalid ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from continual_petl.errors import InputError
from continual_petl.streams.preparation.labels import (
    absent_notice,
    class_labels,
    encode_labels,
    label_names,
    read_label_names,
)
from continual_petl.streams.sources.checks import Cells, Where

TRAIN = Where(task="news", split="train", origin="train.csv")


def _learn(values: list[Any], given: tuple[str, ...] | None = None) -> tuple[tuple[str, ...], list[int]]:
    names = label_names(Cells(TRAIN, "label", values))
    labels = class_labels(names, names, given)
    return labels, encode_labels(names, labels, positions=given is not None).tolist()


@pytest.mark.parametrize(
    ("values", "labels", "indices"),
    [
        (["b", "a", "b"], ("a", "b"), [1, 0, 1]),
        ([10, 9, 10], ("9", "10"), [1, 0, 1]),
        (["10", "9"], ("9", "10"), [1, 0]),
        ([1.0, 0.0], ("0", "1"), [1, 0]),
        ([True, False], ("false", "true"), [1, 0]),
        (["007", "10"], ("007", "10"), [0, 1]),
        ([1, "x"], ("1", "x"), [0, 1]),
    ],
)
def test_labels_are_sorted_by_default(values: list[Any], labels: tuple[str, ...], indices: list[int]) -> None:
    assert _learn(values) == (labels, indices)


@pytest.mark.parametrize(
    ("values", "given", "indices"),
    [
        (["World", "Arts"], ("World", "Arts"), [0, 1]),
        ([1, 0, 1], ("World", "Arts"), [1, 0, 1]),
        (["1", "0"], ("World", "Arts"), [1, 0]),
        ([1, 2], ("2", "1"), [1, 0]),
        ([1, 0], ("1", "0"), [0, 1]),
    ],
)
def test_label_list_fixes_the_order_and_names_numbers(
    values: list[Any], given: tuple[str, ...], indices: list[int]
) -> None:
    assert _learn(values, given) == (given, indices)


def test_indices_are_only_allowed_with_an_explicit_list() -> None:
    test = Where(task="news", split="test", origin="test.csv")
    with pytest.raises(InputError, match=r"'news', split test \(test.csv\), column 'label': 1 row .*row 2: label '1'"):
        encode_labels(Cells(test, "label", ["b", "1"]), ("a", "b"), positions=False)


@pytest.mark.parametrize(("value", "what"), [(None, "missing"), ("", "missing"), (float("nan"), "missing")])
def test_missing_labels_are_refused(value: object, what: str) -> None:
    with pytest.raises(InputError, match=f"column 'label': 2 rows cannot be used: row 2: {what}; row 3: {what}"):
        label_names(Cells(TRAIN, "label", ["a", value, value]))


@pytest.mark.parametrize("value", [0.5, ["a"], {"a": 1}])
def test_labels_of_the_wrong_type_are_refused(value: object) -> None:
    with pytest.raises(InputError, match=rf"row 1: .* is {type(value).__name__}.*kind: regression"):
        label_names(Cells(TRAIN, "label", [value]))


@pytest.mark.parametrize(("values", "given"), [([2, 0], ("a", "b")), ([-1, 0], ("a", "b")), (["c", "a"], ("a", "b"))])
def test_labels_out_of_range_are_refused(values: list[Any], given: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=r"the list `labels`: 'a', 'b', or their positions 0 to 1"):
        _learn(values, given)


def test_index_is_not_a_name_if_names_are_integers() -> None:
    with pytest.raises(InputError, match=r"label '0' is unknown.*the list `labels`: '1', '2'\. Repair"):
        _learn([0, 1], ("1", "2"))


def test_only_five_mistakes_are_shown() -> None:
    with pytest.raises(InputError, match=r"9 rows cannot be used: .*row 5: missing; and 4 more\. A label"):
        label_names(Cells(TRAIN, "label", [None] * 9))


def test_single_class_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"all rows have the label 'a'.*two classes, so add rows with another label\.$"
    ):
        _learn(["a", "a"])
    with pytest.raises(InputError, match=r"add rows with another label, or use kind: regression\.$"):
        _learn([3, 3])


def test_class_without_rows_is_reported() -> None:
    assert absent_notice("news", ("a", "b"), np.array([1, 2])) is None
    notice = absent_notice("news", ("a", "b", "c"), np.array([1, 0, 0]))
    assert notice is not None
    assert "no training row has the labels 'b', 'c'; they cannot be learned" in notice


@pytest.mark.parametrize("content", [["no", "yes"], {"names": ["no", "yes"]}])
def test_labels_are_read_from_a_file(tmp_path: Path, content: object) -> None:
    (tmp_path / "labels.json").write_text(json.dumps(content))
    assert read_label_names(tmp_path / "labels.json") == ("no", "yes")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1}', "must be a JSON list of names"),
        ("[1.5]", "must be a JSON list of names"),
        ("[true, false]", "must be a JSON list of names"),
        ('["a", "a"]', "holds 'a' more than once"),
        ('["a"]', "holds 1 name;"),
        ("[", "is not JSON"),
    ],
)
def test_invalid_label_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "labels.json").write_text(content)
    with pytest.raises(InputError, match=message):
        read_label_names(tmp_path / "labels.json")


def test_missing_label_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*No such file"):
        read_label_names(tmp_path / "labels.json")
