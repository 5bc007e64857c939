"""Options that are given in each row: a list of different texts, written as JSON in CSV files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from continual_petl.errors import counted
from continual_petl.kind import MAX_OPTIONS
from continual_petl.streams.sources.checks import Fault, Where, raise_faults, show
from continual_petl.streams.sources.conversations import from_cell


def option_lists(where: Where, column: str, values: Sequence[Any]) -> list[tuple[str, ...]]:
    """Return the options of every row.

    Raises:
        InputError: if a row is not a list of 2 to 1,000 different texts; the message names these rows.
    """
    rows: list[tuple[str, ...]] = []
    faults = []
    for row, value in enumerate(values):
        options = options_of(value)
        if (what := options_fault(value, options)) is not None:
            faults.append(Fault(row=row, what=what))
        rows.append(tuple(options or ()))
    rule = f'Every row needs a list of 2 to {MAX_OPTIONS:,} different texts, such as ["yes", "no"]; repair or remove'
    raise_faults(where, column, faults, f"{rule} these rows.")
    return rows


def options_fault(value: Any, options: list[Any] | None) -> str | None:
    """Return why the options of a row cannot be used; None if they can.

    Args:
        value: as given.
        options: the value as a list; None if it is not one.
    """
    if options is None:
        return "missing" if value is None else f"{show(value)} is not a list"
    if not 2 <= len(options) <= MAX_OPTIONS:
        return f"it has {counted(len(options), 'option')}"
    for number, option in enumerate(options, 1):
        if not isinstance(option, str) or not option.strip():
            return f"option {number} is {show(option)}"
    return next((f"{show(text)} is listed more than once" for text, n in Counter(options).items() if n > 1), None)


def options_of(value: Any) -> list[Any] | None:
    """Return a cell as a list; None if it is not one."""
    value = from_cell(value)
    return list(value) if isinstance(value, list | tuple) else None
