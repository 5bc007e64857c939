"""Rows that cannot be read: all of a file are reported in one message, unless the caller does something else with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from continual_petl.errors import InputError

Record = dict[str, Any]
"""A row: its cells by the name of the column."""
Numbered = tuple[int, Record]
"""The 1-based number of a record's first line, or of the row if rows have no lines of their own; and the record."""
Bad = Callable[[int, str, str], None]
"""Told of each row that cannot be read: its number, what is wrong with it, and what to do."""
Header = Callable[[Sequence[str]], None]
"""Told of the names of all columns of a file before its first row, unless each row names its own, as in JSON."""
FULL_ROWS = 1_000
"""The first rows have all columns, also those that are not asked for, so that a caller can say what is not read."""
GONE: Any = object()
"""In a column, stands for the cell of a row that has none."""
_SHOWN = 5


def column_of(rows: Sequence[Record], name: str) -> list[Any]:
    """Return the cells of a column; `GONE` where a row has none."""
    try:
        return [*map(itemgetter(name), rows)]
    except KeyError:
        return [row.get(name, GONE) for row in rows]


class FaultyRows:
    """The rows of a file that cannot be read.

    Args:
        place: beginning of the message; names the file.
        unit: what the numbers count: lines or rows.
    """

    def __init__(self, place: str, unit: str) -> None:
        self._place, self._unit = place, unit
        self._count, self._advice = 0, ""
        self._shown: list[str] = []

    def __call__(self, number: int, what: str, advice: str) -> None:
        """Add a row; a `Bad`."""
        self._count += 1
        self._advice = self._advice or advice
        if self._count <= _SHOWN:
            self._shown.append(f"{self._unit} {number:,}: {what}")

    def check(self) -> None:
        """Raise `InputError` if there are any."""
        if not self._count:
            return
        count = f"1 {self._unit}" if self._count == 1 else f"{self._count:,} {self._unit}s"
        more = f"; and {self._count - _SHOWN:,} more" if self._count > _SHOWN else ""
        raise InputError(f"{self._place}: {count} cannot be read: {'; '.join(self._shown)}{more}. {self._advice}")
