"""The user's own names of rows: their values in a column such as ``id``, for messages and lists of rows.

Such a column is read only when a row is shown to the user, by reading its files once more: otherwise it is neither parsed nor
kept in memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set
from itertools import chain, islice
from typing import Any, NamedTuple, NoReturn

from continual_petl.errors import InputError
from continual_petl.streams.reader.records import read_records
from continual_petl.streams.reader.wanted import Wanted
from continual_petl.streams.schema.limits_spec import LimitsSpec

ID_COLUMNS = frozenset({"id", "ID", "Id", "_id", "idx", "uid", "guid", "uuid", "qid", "row_id", "example_id"})
"""Columns by which users know their rows."""
_NO_LIMITS = LimitsSpec(cell_mb=1e9, unpacked_gb=1e9, ratio=1e9)  # the files were read within their limits before


class RowId(NamedTuple):
    """The user's own name of a row."""

    column: str
    value: str | int

    def __str__(self) -> str:
        return f"{self.column} {self.value!r:.40}"


def id_in(record: Mapping[str, Any]) -> RowId | None:
    """Return the first column of a row that names it, with its value; None if there is none."""
    for name, value in record.items():
        if name in ID_COLUMNS and isinstance(value, str | int) and value != "":
            return RowId(name, value)
    return None


class FilesRead(NamedTuple):
    """The files of a split, or of a part of it, as they were read, so that they can be read in the same way again."""

    paths: tuple[str, ...]
    reader: str | None
    lists: Set[str]
    stamps: tuple[tuple[int, int], ...]
    """Size and time of the last change of each."""
    rows: range = range(2**62)
    """Which of their rows are taken, counted from 0 over all files."""

    @classmethod
    def of(cls, paths: Sequence[str], reader: str | None, lists: Set[str]) -> FilesRead | None:
        """Return what is known of files before they are read; None if they are not all on this machine."""
        stamps = _stamps(paths)
        return None if stamps is None else cls(tuple(paths), reader, lists, stamps)


def _stamps(paths: Sequence[str]) -> tuple[tuple[int, int], ...] | None:
    try:
        return tuple((found.st_size, found.st_mtime_ns) for found in map(os.stat, paths))
    except OSError:
        return None


def ids_in_files(parts: Sequence[FilesRead], numbers: Sequence[int]) -> dict[int, RowId]:
    """Return the ids of some rows of a split, see `id_in`; those that cannot be found are left out.

    Args:
        parts: the files of the split, one part after the other; if they have changed since, there are no ids.
        numbers: the rows, counted from 0 over all parts.
    """
    found: dict[int, RowId] = {}
    start = 0
    for files in parts:
        number_of = {
            files.rows[number - start]: number for number in numbers if number - start in range(len(files.rows))
        }
        found |= {number_of[row]: own for row, own in _ids_in(files, number_of.keys()).items()}
        start += len(files.rows)
    return found


def _ids_in(files: FilesRead, asked: Set[int]) -> dict[int, RowId]:
    if not asked or _stamps(files.paths) != files.stamps:
        return {}
    wanted = Wanted(ID_COLUMNS, files.lists)
    rows = chain.from_iterable(
        read_records(path, path, _NO_LIMITS, wanted, reader=files.reader, bad=_stop) for path in files.paths
    )
    found: dict[int, RowId] = {}
    try:
        for number, (_, record) in enumerate(islice(rows, max(asked) + 1)):
            if number in asked and (own := id_in(record)) is not None:
                found[number] = own
    except InputError:  # this is only about a name, and there is something else to report
        return {}
    return found


def _stop(*_: object) -> NoReturn:
    raise InputError("a row was left out, so the numbers of the others would be wrong")
