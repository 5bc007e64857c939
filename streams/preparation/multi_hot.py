"""Lists of zeros and ones in a multilabel task (multi-hot): entry number k says whether label number k applies."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from continual_petl.errors import InputError
from continual_petl.streams.preparation.labels import label_name
from continual_petl.streams.sources.cells import as_list
from continual_petl.streams.sources.checks import Cells, show

_ENTRY = r"(?:[01](?:\.0*)?|true|false)"
_SPACED = re.compile(rf"\[?\s*{_ENTRY}(?:[\s,;]+{_ENTRY})+\s*\]?|\[\s*{_ENTRY}\s*\]", re.ASCII | re.IGNORECASE)


def multi_hot(values: Sequence[Any]) -> list[list[bool]] | None:
    """Return a column as flags if every row is a list of zeros and ones, all of the same length, or empty.

    Zeros and ones may be booleans, numbers or digits, or true and false as text; a cell of a CSV file may also hold them with
    spaces or commas between them.

    Example:
        >>> multi_hot([[1, 0, 0], "0 1 1"])
        [[True, False, False], [False, True, True]]
        >>> multi_hot([[1, 0], [1]]) is None
        True
    """
    rows: list[list[bool]] = []
    length = 0
    for value in values:
        row = _flags(value)
        if row is None or (row and len(row) != (length or len(row))):
            return None
        rows.append(row)
        length = length or len(row)
    return rows if length else None


def flags_of(values: Sequence[Any], labels: tuple[str, ...]) -> list[list[bool]] | None:
    """Return a column as flags if it is multi-hot with one entry for each label; see `multi_hot`.

    If a label has the name of an entry, such as 0 or true, two entries that differ could also be names.
    """
    rows = multi_hot(values)
    if rows is None or len(labels) != max(map(len, rows)):
        return None
    certain = any(len(row) > 2 or row[:1] == row[1:] for row in rows if row)
    return rows if certain or not any(label.strip().lower() in _FLAGS for label in labels) else None


def named_rows(column: Cells[list[bool]], labels: tuple[str, ...]) -> Cells[list[str]]:
    """Return the labels of every row of flags as names.

    Raises:
        InputError: if a row is empty; the message names these rows.
    """

    def names_in(row: Sequence[bool]) -> list[str]:
        if not row:
            raise ValueError("empty")
        return [label for label, flag in zip(labels, row, strict=True) if flag]

    rule = (
        f"The other rows are lists of {len(labels)} zeros and ones, one for each label: write all zeros for no label."
    )
    return column.read(names_in, rule)


def names_by_column(rows: Cells[Any], columns: Sequence[str]) -> Cells[list[str]]:
    """Return the labels of every row as names, from columns with 0 or 1 that are named after the labels.

    Raises:
        InputError: if a cell is neither 0 nor 1; the message names the first column with such cells, and its rows.
    """
    if not rows:
        return rows
    rule = "A column of columns.label needs 0 or 1 in every row; repair or remove these rows."
    by_column = zip(columns, zip(*rows, strict=True), strict=True)
    flags = [Cells(rows.where, name, cells).read(_zero_or_one, rule) for name, cells in by_column]
    named = ([name for name, flag in zip(columns, row, strict=True) if flag] for row in zip(*flags, strict=True))
    return Cells(rows.where, rows.name, named)


def _zero_or_one(cell: Any) -> bool:
    flag = _flag(cell.removesuffix(".0") if isinstance(cell, str) else cell)
    if flag is None:
        raise ValueError("missing" if cell in (None, "") else f"{show(cell)} is neither 0 nor 1")
    return flag


def check_even(column: Cells[Any]) -> None:
    """Refuse rows that differ in form from the others if most rows can only be multi-hot; names would be listed twice.

    Raises:
        InputError: if there are such rows; the message names them.
    """
    rows = [*map(_flags, column)]
    lengths = Counter(len(row) for row in rows if row is not None and len(row) > 1)
    length, often = lengths.most_common(1)[0] if lengths else (0, 0)
    if 2 * often <= len(rows) or not any(row and len(row) == length and len({*row}) < length for row in rows):
        return

    def of_this_form(row: tuple[Any, list[bool] | None]) -> None:
        value, flags = row
        if flags is None or len(flags) != length:
            raise ValueError("missing" if value is None else f"{show(value)} is not of this form")

    rule = f"The other rows are lists of {length} zeros and ones (multi-hot): write these rows like them."
    column.beside(rows).read(of_this_form, rule)


def check_named(column: Cells[Any], labels: tuple[str, ...] | None) -> None:
    """Refuse a column of training rows that is or may be multi-hot, unless it is certain how to read it.

    It is if the labels are given, as many as each list has entries. Lists of one entry are names if `labels` holds them.

    Raises:
        InputError: if the column may be multi-hot, and `flags_of` cannot read it.
    """
    rows = multi_hot(column)
    if rows is None:
        _check_no_flags(column, labels)
        return
    if labels is not None and flags_of(column, labels) is not None:
        return
    length = max(map(len, rows))
    if length == 1:
        lists = [[None] if (found := as_list(value)) is None else found for value in column]
        if labels is None or not {label_name(entry) for own in lists for entry in own} <= {*labels}:
            raise _one_entry(column)
        return
    if labels is None:
        given = "no labels are given"
    elif len(labels) != length:
        given = f"labels names {len(labels)} ({', '.join(map(repr, labels[:5]))}{', ...' if len(labels) > 5 else ''})"
    else:
        given = "an entry is also the name of a label, so each row could as well name both of them"
    raise InputError(
        f"{column}: every row is a list of {length} zeros and ones, such as {show(column[0])}. That is "
        f"multi-hot, with one entry for each of {length} labels, but {given}. Write labels: with the {length} names in the "
        'order of the entries; or write the names of the labels that apply to a row, such as ["sport", "news"].',
        key=("labels",),
    )


def _one_entry(column: Cells[Any]) -> InputError:
    first = next(value for value in column if as_list(value) != [])
    return InputError(
        f"{column}: every row is a list of one entry, which is 0 or 1 (false or true), such as "
        f"{show(first)}. It may say whether a label applies, or be the name or the position of a label. Write the names of "
        'the labels that apply to a row, such as ["sport"], or [] for none; for one yes or no per row, write kind: '
        "classification and the value without a list.",
        key=("columns", "label"),
    )


def _check_no_flags(column: Cells[Any], labels: tuple[str, ...] | None) -> None:
    """Refuse booleans in lists of different lengths, unless labels are called true and false."""
    if {"true", "false"} <= {*(labels or ())}:
        return
    check_even(column)
    rule = "Write one entry for each label in every row (multi-hot), or the names of the labels that apply to it."
    column.read(_without_flags, rule)


def _without_flags(value: Any) -> None:
    if any(isinstance(entry, bool) for entry in as_list(value) or ()):
        raise ValueError(f"{show(value)} holds true or false")


def _flags(value: Any) -> list[bool] | None:
    found = as_list(value)
    if found is None and isinstance(value, str) and _SPACED.fullmatch(value.strip()):
        found = [entry.rstrip("0").rstrip(".") if "." in entry else entry for entry in _entries(value)]
    if found is None:
        return None
    flags = [_flag(entry) for entry in found]
    return None if None in flags else [bool(flag) for flag in flags]


def _entries(text: str) -> list[str]:
    return re.findall(_ENTRY, text, re.ASCII | re.IGNORECASE)


def _flag(entry: Any) -> bool | None:
    if isinstance(entry, str):
        return _FLAGS.get(entry.strip().lower())
    return _FLAGS.get(entry) if isinstance(entry, int | float) else None


_FLAGS: dict[Any, bool] = {0: False, 1: True, "0": False, "1": True, "false": False, "true": True}
"""Also finds 0.0, 1.0, False and True."""
