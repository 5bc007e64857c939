"""Several labels per row: lists of names, tags of words, and invalid lists."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from continual_petl.errors import InputError
from continual_petl.streams.preparation.label_lists import (
    encode_multilabel,
    encode_tags,
    label_lists,
    tag_lists,
)
from continual_petl.streams.preparation.labels import check_class_weights
from continual_petl.streams.sources.cells import WORDS, words_in
from continual_petl.streams.sources.checks import Cells, Where

WHERE = Where(task="toy", split="train", origin="rows")


def test_label_lists_of_names_numbers_and_json() -> None:
    found = label_lists(Cells(WHERE, "label", [["a", "b"], [], '["a", 2]', [3], (True,)]))
    assert found == [["a", "b"], [], ["a", "2"], ["3"], ["true"]]
    assert [words_in(["a", "b"]), words_in('["c"]')] == [["a", "b"], ["c"]]
    assert tag_lists(Cells(WHERE, "tags", [["O", 1], "[0]"]), [["a", "b"], ["c"]]) == [["O", "1"], ["0"]]


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (None, "missing"),
        ("a", "'a' is not a list"),
        (3, "3 is not a list"),
        ('{"a": 1}', "is not a list"),
        (["a", None], "label 2, None, is neither"),
        (["a", 0.5], "label 2, 0.5, is neither"),
        (["a", "b", "a"], "label 'a' is listed more than once"),
    ],
)
def test_rows_without_label_lists_are_refused(value: Any, what: str) -> None:
    with pytest.raises(InputError, match=f"column 'label': 1 row cannot be used: row 2: .*{re.escape(what)}"):
        label_lists(Cells(WHERE, "label", [["a"], value]))


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (None, "missing"),
        ([], "empty"),
        ("two words", "is not a list"),
        (["a", ""], "word 2 is ''"),
        (["a", " "], "word 2 is ' '"),
        ([1, "a"], "word 1 is 1"),
    ],
)
def test_rows_without_word_lists_are_refused(value: Any, what: str) -> None:
    with pytest.raises(InputError, match=f"row 2: .*{re.escape(what)}"):
        Cells(WHERE, "tokens", [["a"], value]).read(words_in, WORDS)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (None, "missing"),
        ("O", "is not a list"),
        (["O"], "1 tags for 2 words"),
        (["O", "O", "O"], "3 tags for 2 words"),
        (["O", None], "tag 2, None, is neither"),
    ],
)
def test_rows_with_mismatched_tags_are_refused(value: Any, what: str) -> None:
    with pytest.raises(InputError, match=f"column 'tags': 1 row cannot be used: row 2: .*{re.escape(what)}"):
        tag_lists(Cells(WHERE, "tags", [["O"], value]), [["a"], ["b", "c"]])


def test_order_of_labels_in_a_row_does_not_matter() -> None:
    targets_NC = encode_multilabel(Cells(WHERE, "label", [["b", "a"], [], ["b"]]), ("a", "b", "c"), positions=False)
    assert targets_NC.dtype == np.float32
    assert targets_NC.tolist() == [[1, 1, 0], [0, 0, 0], [0, 1, 0]]


def test_numbers_may_be_indices_into_a_given_list() -> None:
    assert encode_multilabel(Cells(WHERE, "label", [["1"]]), ("no", "yes"), positions=True).tolist() == [[0, 1]]
    assert encode_tags(Cells(WHERE, "tags", [["1", "no"]]), ("no", "yes"), positions=True)[0].tolist() == [1, 0]
    with pytest.raises(InputError, match="row 1: tag '1' is unknown"):
        encode_tags(Cells(WHERE, "tags", [["1", "no"]]), ("no", "yes"), positions=False)


def test_unknown_labels_are_refused() -> None:
    with pytest.raises(InputError, match=r"row 2: label 'x' is unknown.*those of the training rows: 'a', 'b'"):
        encode_multilabel(Cells(WHERE, "label", [["a"], ["b", "x"]]), ("a", "b"), positions=False)
    with pytest.raises(InputError, match=r"row 1: tag 'x' is unknown.*the list `labels`"):
        encode_tags(Cells(WHERE, "tags", [["x"]]), ("a", "b"), positions=True)


def test_weights_of_unknown_labels_are_refused() -> None:
    check_class_weights("toy", {"a": 1.0}, ("a", "b"))
    check_class_weights("toy", "balanced", ("a", "b"))
    with pytest.raises(
        InputError, match=r"task 'toy', training.class_weights: 'c' is not a label .* labels are 'a', 'b'"
    ):
        check_class_weights("toy", {"a": 1.0, "c": 2.0}, ("a", "b"))


@given(st.lists(st.sets(st.sampled_from("abcd")), max_size=8))
def test_any_label_set_roundtrips(sets: list[set[str]]) -> None:
    labels = ("c", "a", "d", "b")
    targets_NC = encode_multilabel(Cells(WHERE, "label", [sorted(own) for own in sets]), labels, positions=False)
    assert [{labels[n] for n in np.flatnonzero(row)} for row in targets_NC] == sets
