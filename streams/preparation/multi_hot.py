"""Lists of zeros and ones in a multilabel task (multi-hot): entry number k says whether label number k applies."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from continual_petl.errors import InputError
from continual_petl.streams.sources.checks import Fault, Where, raise_faults, show

_SPACED = re.compile(r"\[?\s*[01](\.0*)?([\s,;]+[01](\.0*)?)+\s*\]?", re.ASCII)


def as_list(value: Any) -> list[Any] | None:
    """Return ``value`` as a list, parsing it if it is a JSON list; ``None`` for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):  # RecursionError: deeply nested lists
            return None
    if not isinstance(value, list | tuple) and getattr(value, "ndim", None) == 1 and hasattr(value, "tolist"):
        value = value.tolist()  # an array or a tensor
    return list(value) if isinstance(value, list | tuple) else None


def multi_hot(values: Sequence[Any]) -> list[list[bool]] | None:
    """Return a column as flags if every row is a list of zeros and ones, all of the same length of at least 2, or empty.

    Zeros and ones may be booleans, numbers or digits; a cell of a CSV file may also hold them with spaces or commas between
    them.

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
        if row is None or (row and len(row) != (length or len(row))) or len(row) == 1:
            return None
        rows.append(row)
        length = length or len(row)
    return rows if length else None


def flags_of(values: Sequence[Any], labels: tuple[str, ...]) -> list[list[bool]] | None:
    """Return a column as flags if it is multi-hot with one entry for each label; see `multi_hot`.

    If a label has the name 0 or 1, two entries that differ could also be names.
    """
    rows = multi_hot(values)
    if rows is None or len(labels) != max(map(len, rows)):
        return None
    certain = any(len(row) > 2 or row[:1] == row[1:] for row in rows if row)
    return rows if certain or not {"0", "1"} & {*labels} else None


def named_rows(where: Where, column: str, rows: Sequence[Sequence[bool]], labels: tuple[str, ...]) -> list[list[str]]:
    """Return the labels of every row of flags as names.

    Raises:
        InputError: if a row is empty; the message names these rows.
    """
    faults = [Fault(row=number, what="empty") for number, row in enumerate(rows) if not row]
    rule = (
        f"The other rows are lists of {len(labels)} zeros and ones, one for each label: write all zeros for no label."
    )
    raise_faults(where, column, faults, rule)
    return [[label for label, flag in zip(labels, row, strict=True) if flag] for row in rows]


def check_even(where: Where, column: str, values: Sequence[Any]) -> None:
    """Refuse rows that differ in form from the others if most rows can only be multi-hot; names would be listed twice.

    Raises:
        InputError: if there are such rows; the message names them.
    """
    rows = [_flags(value) for value in values]
    lengths = Counter(len(row) for row in rows if row is not None and len(row) > 1)
    length, often = lengths.most_common(1)[0] if lengths else (0, 0)
    if 2 * often <= len(rows) or not any(row and len(row) == length and len({*row}) < length for row in rows):
        return
    faults = [
        Fault(row=number, what="missing" if value is None else f"{show(value)} is not of this form")
        for number, (value, row) in enumerate(zip(values, rows, strict=True))
        if row is None or len(row) != length
    ]
    rule = f"The other rows are lists of {length} zeros and ones (multi-hot): write these rows like them."
    raise_faults(where, column, faults, rule)


def check_named(where: Where, column: str, values: Sequence[Any], labels: tuple[str, ...] | None) -> None:
    """Refuse a multi-hot column of training rows unless the labels are given, as many as each list has entries.

    Raises:
        InputError: if the column is multi-hot, and `flags_of` cannot read it.
    """
    rows = multi_hot(values)
    if rows is None or (labels is not None and flags_of(values, labels) is not None):
        return
    length = max(map(len, rows))
    if labels is None:
        given = "no labels are given"
    elif len(labels) != length:
        given = f"labels names {len(labels)} ({', '.join(map(repr, labels[:5]))}{', ...' if len(labels) > 5 else ''})"
    else:
        given = "0 or 1 is also the name of a label, so each row could as well name both of them"
    raise InputError(
        f"{where}, column {column!r}: every row is a list of {length} zeros and ones, such as {show(values[0])}. That is "
        f"multi-hot, with one entry for each of {length} labels, but {given}. Write labels: with the {length} names in the "
        'order of the entries; or write the names of the labels that apply to a row, such as ["sport", "news"].',
        key=("labels",),
    )


def _flags(value: Any) -> list[bool] | None:
    found = as_list(value)
    if found is None and isinstance(value, str) and _SPACED.fullmatch(value.strip()):
        found = [float(entry) for entry in re.findall(r"[01](?:\.0*)?", value)]
    if found is None:
        return None
    flags = [_FLAGS.get(entry) if isinstance(entry, str | int | float) else None for entry in found]
    return None if None in flags else [bool(flag) for flag in flags]


_FLAGS: dict[Any, bool] = {0: False, 1: True, "0": False, "1": True}
"""Also finds 0.0, 1.0, False and True."""
