"""Cells that hold a list as one text, with a mark between its entries: several labels, or words and their tags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from continual_petl.errors import InputError, did_you_mean
from continual_petl.streams.sources.checks import Fault, Where, columns_there, raise_faults, show


def split_cells(
    where: Where, table: Mapping[str, list[Any]], lists: Mapping[str, str] | None
) -> Mapping[str, list[Any]]:
    """Return a table with lists in the columns that hold them as one text; a missing cell has no entries.

    Args:
        where: the split, for messages.
        table: its columns as read.
        lists: for each of these columns, the mark between two entries; see `split_cell`.

    Raises:
        InputError: if there is no such column, or a cell is not a text.
    """
    made: dict[str, list[Any]] = {}
    for name, mark in (lists or {}).items():
        if name not in table:
            raise InputError(
                f"{where}: data.lists names the column {name!r}, but there is no such column{did_you_mean(name, table)}; "
                f"{columns_there(table)}. Use one of these names."
            )
        faults = [
            Fault(row=row, what=f"{show(value)} is of type {type(value).__name__}")
            for row, value in enumerate(table[name])
            if not isinstance(value, str | None)
        ]
        raise_faults(
            where, name, faults, "data.lists is for lists that are written as one text; remove this column there."
        )
        made[name] = [split_cell(value, mark) for value in table[name]]
    return {**table, **made}


def split_cell(value: str | None, mark: str) -> list[str]:
    """Return the entries of a cell, without white space around them; a single space stands for any white space.

    Example:
        >>> split_cell("sport | world news", "|"), split_cell("EU  rejects ", " "), split_cell("", "|")
        (['sport', 'world news'], ['EU', 'rejects'], [])
    """
    if value is None or not value.strip():
        return []
    return value.split() if mark == " " else [entry.strip() for entry in value.split(mark)]
