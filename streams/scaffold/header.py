"""Detect a table without a header, whose first row was mistaken for the names of its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from continual_petl.streams.reader.delimited import shown_columns
from continual_petl.streams.scaffold import column_names
from continual_petl.streams.scaffold.profile import is_number

_KNOWN = {
    *chain(
        column_names.TEXT,
        column_names.LABEL,
        column_names.SOURCE,
        column_names.TARGET,
        column_names.TOKENS,
        column_names.TAGS,
        column_names.IMAGE,
        column_names.ROW_NAMES,
    ),
    *chain.from_iterable((*column_names.PAIRS, *column_names.SOURCES)),
}


def header_remark(data: str, table: Mapping[str, Sequence[Any]]) -> str | None:
    """Return a remark if no column has a common name and every name looks like a value of its column.

    Args:
        data: the name of the data, for the remark.
        table: the columns of a csv or tsv file, as text.
    """
    if not table or any(name.lower() in _KNOWN for name in table):
        return None
    if not all(_is_like(name, [value for value in values if value]) for name, values in table.items()):
        return None
    return (
        f"{data}: its first line was taken as the names of the columns ({shown_columns(table)}), but it looks like a row of "
        "data. If it is one, add a line above it that names the columns, such as text,label."
    )


def _is_like(name: str, values: Sequence[str]) -> bool:
    """Return whether a name could be one of the values: a number among numbers, a known label, a text of similar length."""
    if not values or not all(isinstance(value, str) for value in values):
        return False
    if all(map(is_number, values)):
        return is_number(name)
    lengths = [len(value) for value in values]
    return name in values or (" " in name.strip() and min(lengths) <= len(name) <= max(lengths))
