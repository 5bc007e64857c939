"""Options in several columns of a table, one for each option, as in COPA (choice1, choice2) and SWAG (ending0 to ending3)."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any


class OptionColumns(str):
    """The columns with the options of a row, in their order; as a text, their names as a message lists them."""

    __slots__ = ("names",)

    def __new__(cls, names: Sequence[str]) -> OptionColumns:
        """Return the columns with these names."""
        made = super().__new__(cls, ", ".join(names))
        made.names = tuple(names)
        return made

    names: tuple[str, ...]


def names_of(column: str) -> tuple[str, ...]:
    """Return the names in the table of what a task reads as one column."""
    return column.names if isinstance(column, OptionColumns) else (column,)


def is_there(column: str, names: Container[str]) -> bool:
    """Return whether a table or a record with these names has a column."""
    return all(name in names for name in names_of(column))


def cell_of(column: str, record: Mapping[str, Any]) -> Any:
    """Return what a record holds in a column; for several columns, the list of what it holds in each."""
    return [record[name] for name in column.names] if isinstance(column, OptionColumns) else record[column]


def cells_of(column: str, table: Mapping[str, list[Any]]) -> list[Any]:
    """Return all cells of a column of a table; for several columns, the list of each row."""
    if isinstance(column, OptionColumns):
        return [list(row) for row in zip(*(table[name] for name in column.names), strict=True)]
    return table[column]
