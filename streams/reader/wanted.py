"""What a caller wants of a file of rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import NamedTuple

from continual_petl.streams.reader.faulty_rows import Header

LISTS = frozenset({"tokens", "messages"})
"""Columns that usually hold a list in each row, and the keys of ``columns`` that name such columns."""


def list_columns(read: Mapping[str, str | None], written: Collection[str] | None = None) -> frozenset[str]:
    """Return the columns that hold a list in each row.

    Args:
        read: the keys of ``columns`` that a task reads, with the names of the columns.
        written: the columns whose lists are written as one text, as under `data.lists`.
    """
    return frozenset(name for key, name in read.items() if key in LISTS and name is not None) - {*(written or ())}


class Wanted(NamedTuple):
    """What is read of files."""

    columns: Set[str] | None = None
    """The columns to read. Others are neither parsed nor checked where the format allows it, and only the first rows may have
    them. None: all columns."""
    lists: Set[str] = LISTS
    """Columns that hold a list in each row: in JSON, an object with one list of texts there is one row."""
    typed: bool = False
    """Whether dates and times keep their types, to be written again, instead of being texts; then columns whose type is not
    read are refused, while otherwise only those are that are asked for by name."""
    header: Header = lambda names: None
    """Told of the names of all columns before the first row, unless each row names its own, as in JSON."""
