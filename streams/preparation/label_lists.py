"""Labels of tasks with several labels per row: any number (multilabel), or one per word (tags).

Every label is a name, as in `continual_petl.streams.preparation.labels`. CSV files have no lists, so there the list is
written as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from continual_petl.streams.preparation.labels import label_index, label_name, unknown_rule
from continual_petl.streams.preparation.multi_hot import check_even, flags_of, named_rows
from continual_petl.streams.preparation.spelling_notices import unknown_faults
from continual_petl.streams.sources.cells import list_in
from continual_petl.streams.sources.checks import Cells, show


def label_lists(column: Cells[Any]) -> Cells[list[str]]:
    """Return the labels of every row of a multilabel task as names; a row may have none.

    Raises:
        InputError: if a row is not a list, or has a duplicate label or one that is neither string nor integer; the
            message names these rows.
    """
    rule = (
        'Every row needs a list of labels, [] for none, ["a", "b"] for two, or, in all rows, as many zeros and ones as '
        "`labels` has names; repair these rows."
    )
    return column.read(_labels, rule)


def _labels(value: Any) -> list[str]:
    names = _names(value, "label")
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"label {twice!r} is listed more than once")
    return names


def _names(value: Any, word: str) -> list[str]:
    names = []
    for number, entry in enumerate(list_in(value), 1):
        if (name := label_name(entry)) is None:
            raise ValueError(f"{word} {number}, {show(entry)}, is neither string nor integer")
        names.append(name)
    return names


def label_names_of(column: Cells[Any], given: tuple[str, ...] | None) -> Cells[list[str]]:
    """Return the labels of every row of a multilabel task as names, whether it names them or is multi-hot.

    Args:
        column: the label column.
        given: the labels in order, if the user gives them; without them, no row is multi-hot.

    Raises:
        InputError: as in `label_lists` and `named_rows`.
    """
    check_even(column)
    flags = None if given is None else flags_of(column, given)
    if flags is None or given is None:
        return label_lists(column)
    return named_rows(Cells(column.where, column.name, flags), given)


def tag_lists(column: Cells[Any], words: Sequence[Sequence[str]]) -> Cells[list[str]]:
    """Return the tags of every row as names, one per word.

    Args:
        column: the column of tags.
        words: the words of every row.

    Raises:
        InputError: if a row is not a list, has more or fewer tags than words, or has an invalid tag; the message names
            these rows.
    """

    def tags_in(row: tuple[Any, Sequence[str]]) -> list[str]:
        value, own = row
        if (count := len(list_in(value))) != len(own):
            raise ValueError(f"{count} tags for {len(own)} words")
        return _names(value, "tag")

    rule = "Every word needs one tag, a string or an integer; repair or remove these rows."
    return column.beside(words).read(tags_in, rule)


def encode_multilabel(rows: Cells[list[str]], labels: tuple[str, ...], *, positions: bool) -> NDArray[np.float32]:
    """Encode the labels of each row as 0 or 1, ``(N, C)``; arguments as in `encode_labels`.

    Raises:
        InputError: if a row has a label that is not among ``labels``; the message names these rows.
    """
    numbers = _numbers(rows, labels, "label", positions=positions)
    targets_NC = np.zeros((len(rows), len(labels)), dtype=np.float32)
    for row, own in enumerate(numbers):
        targets_NC[row, own] = 1.0
    return targets_NC


def encode_tags(rows: Cells[list[str]], labels: tuple[str, ...], *, positions: bool) -> list[NDArray[np.int64]]:
    """Encode every tag as a class index, one array per row; arguments as in `encode_labels`.

    Raises:
        InputError: if a row has a tag that is not among ``labels``; the message names these rows.
    """
    numbers = _numbers(rows, labels, "tag", positions=positions)
    return [np.array(own, dtype=np.int64) for own in numbers]


def _numbers(rows: Cells[list[str]], labels: tuple[str, ...], word: str, *, positions: bool) -> list[list[int]]:
    index = label_index(labels, positions=positions)
    first = ((row, next((name for name in names if name not in index), None)) for row, names in enumerate(rows))
    faults = unknown_faults(((row, name) for row, name in first if name is not None), index, word)
    if faults:
        rows.refuse(faults, unknown_rule(labels, positions=positions))
    return [[index[name] for name in names] for names in rows]
