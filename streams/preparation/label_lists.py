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
from continual_petl.streams.preparation.multi_hot import as_list, check_even, flags_of, named_rows
from continual_petl.streams.preparation.spelling_notices import unknown_faults
from continual_petl.streams.sources.checks import Fault, Where, raise_faults, show


def word_lists(where: Where, column: str, values: Sequence[Any]) -> list[list[str]]:
    """Return the words of every row.

    Raises:
        InputError: if a row is not a list, has no words, or has a word that is blank or not a string; the message names
            these rows.
    """
    rows: list[list[str]] = []
    faults = []
    for row, value in enumerate(values):
        words = as_list(value)
        if not words:
            what = "missing" if value is None else "empty" if words == [] else f"{show(value)} is not a list"
            faults.append(Fault(row=row, what=what))
        elif (
            bad := next((n for n, word in enumerate(words) if not isinstance(word, str) or not word.strip()), -1)
        ) >= 0:
            faults.append(Fault(row=row, what=f"word {bad + 1} is {show(words[bad])}"))
        rows.append(words or [])
    raise_faults(
        where, column, faults, 'Every row needs a list of words, such as ["Ada", "slept"]; repair or remove these rows.'
    )
    return rows


def label_lists(where: Where, column: str, values: Sequence[Any]) -> list[list[str]]:
    """Return the labels of every row of a multilabel task as names; a row may have none.

    Raises:
        InputError: if a row is not a list, or has a duplicate label or one that is neither string nor integer; the
            message names these rows.
    """
    rows: list[list[str]] = []
    faults = []
    repeated: set[str | None] = set()
    for row, value in enumerate(values):
        found = as_list(value)
        names = [label_name(entry) for entry in found or []]
        if found is None:
            faults.append(Fault(row=row, what="missing" if value is None else f"{show(value)} is not a list"))
        elif None in names:
            faults.append(Fault(row=row, what=f"label {show(found[names.index(None)])} is neither string nor integer"))
        elif twice := [name for name, count in Counter(names).items() if count > 1]:
            faults.append(Fault(row=row, what=f"label {twice[0]!r} is listed more than once"))
            repeated.update(twice)
        rows.append([name for name in names if name is not None])
    rule = 'Every row needs a list of labels, [] for none, ["a", "b"] for two'
    if repeated & {"0", "1", "true", "false"}:
        rule += ", or, in all rows, as many zeros and ones as `labels` has names"
    raise_faults(where, column, faults, f"{rule}; repair these rows.")
    return rows


def label_names_of(where: Where, column: str, values: Sequence[Any], given: tuple[str, ...] | None) -> list[list[str]]:
    """Return the labels of every row of a multilabel task as names, whether it names them or is multi-hot.

    Args:
        where: the split, for messages.
        column: its label column.
        values: the column's values.
        given: the labels in order, if the user gives them; without them, no row is multi-hot.

    Raises:
        InputError: as in `label_lists` and `named_rows`.
    """
    check_even(where, column, values)
    flags = None if given is None else flags_of(values, given)
    if flags is None or given is None:
        return label_lists(where, column, values)
    return named_rows(where, column, flags, given)


def tag_lists(where: Where, column: str, values: Sequence[Any], words: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the tags of every row as names, one per word.

    Args:
        where: the split, for messages.
        column: its column of tags.
        values: the column's values.
        words: the words of every row.

    Raises:
        InputError: if a row is not a list, has more or fewer tags than words, or has an invalid tag; the message names
            these rows.
    """
    rows: list[list[str]] = []
    faults = []
    for row, (value, own) in enumerate(zip(values, words, strict=True)):
        found = as_list(value)
        names = [label_name(entry) for entry in found or []]
        if found is None:
            faults.append(Fault(row=row, what="missing" if value is None else f"{show(value)} is not a list"))
        elif len(found) != len(own):
            faults.append(Fault(row=row, what=f"{len(found)} tags for {len(own)} words"))
        elif None in names:
            number = names.index(None)
            faults.append(
                Fault(row=row, what=f"tag {number + 1}, {show(found[number])}, is neither string nor integer")
            )
        rows.append([name for name in names if name is not None])
    raise_faults(
        where, column, faults, "Every word needs one tag, a string or an integer; repair or remove these rows."
    )
    return rows


def encode_multilabel(
    where: Where, column: str, rows: Sequence[Sequence[str]], labels: tuple[str, ...], *, positions: bool
) -> NDArray[np.float32]:
    """Encode the labels of each row as 0 or 1, ``(N, C)``; arguments as in `encode_labels`.

    Raises:
        InputError: if a row has a label that is not among ``labels``; the message names these rows.
    """
    numbers = _numbers(where, column, rows, labels, "label", positions=positions)
    targets_NC = np.zeros((len(rows), len(labels)), dtype=np.float32)
    for row, own in enumerate(numbers):
        targets_NC[row, own] = 1.0
    return targets_NC


def encode_tags(
    where: Where, column: str, rows: Sequence[Sequence[str]], labels: tuple[str, ...], *, positions: bool
) -> list[NDArray[np.int64]]:
    """Encode every tag as a class index, one array per row; arguments as in `encode_labels`.

    Raises:
        InputError: if a row has a tag that is not among ``labels``; the message names these rows.
    """
    numbers = _numbers(where, column, rows, labels, "tag", positions=positions)
    return [np.array(own, dtype=np.int64) for own in numbers]


def _numbers(
    where: Where, column: str, rows: Sequence[Sequence[str]], labels: tuple[str, ...], word: str, *, positions: bool
) -> list[list[int]]:
    index = label_index(labels, positions=positions)
    first = ((row, next((name for name in names if name not in index), None)) for row, names in enumerate(rows))
    faults = unknown_faults(((row, name) for row, name in first if name is not None), index, word)
    if faults:
        raise_faults(where, column, faults, unknown_rule(labels, positions=positions))
    return [[index[name] for name in names] for names in rows]
