"""Check rows before a bank is trained on them; error messages name the split, the column and the row.

Row numbers are 1-based: row 1 is the first line of a JSONL file and the first line after the header of a CSV file.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from continual_petl.errors import LONGEST_TYPO, InputError, counted, known_names
from continual_petl.errors import show as show
from continual_petl.streams.reader.delimited import shown_columns
from continual_petl.streams.sources.row_ids import FilesRead, RowId, id_in, ids_in_files

SHOWN = 5
"""Maximum number of rows that a message describes."""
_Cell = TypeVar("_Cell")
_Read = TypeVar("_Read")


@dataclass(frozen=True, kw_only=True)
class Where:
    """A split of a task, for messages."""

    task: str
    split: str
    origin: str
    """File, folder, Hub id or ``rows in the stream file``."""
    numbers: tuple[int, ...] | None = None
    """0-based numbers of its rows in the source, if some rows are left out."""
    ids: Mapping[str, Sequence[Any]] | None = None
    """Columns of the source that name its rows, if they are in memory; None if ``files`` may have some."""
    files: tuple[FilesRead, ...] = ()
    """The files that it was read from, if they are on this machine, one part of its rows after the other."""

    def __str__(self) -> str:
        return f"task {self.task!r}, split {self.split} ({self.origin})"

    def take(self, rows: Sequence[int]) -> Where:
        """Return the same place with only these of its rows."""
        return replace(self, numbers=tuple(map(self._number, rows)))

    def named(self, rows: Sequence[int]) -> list[RowName]:
        """Return the numbers of some rows in the source, and the user's own ids of those that have one.

        Args:
            rows: indices of rows, 0-based.
        """
        numbers = [*map(self._number, rows)]
        if self.ids is None:
            found = ids_in_files(self.files, numbers)
            return [RowName(number + 1, found.get(number)) for number in numbers]
        records = [{name: values[number] for name, values in self.ids.items()} for number in numbers]
        return [RowName(number + 1, id_in(record)) for number, record in zip(numbers, records, strict=True)]

    def _number(self, row: int) -> int:
        return row if self.numbers is None else self.numbers[row]


class RowName(NamedTuple):
    """How a row is named to the user."""

    number: int
    """1-based number in the source."""
    id: RowId | None
    """The user's own name of it."""

    def __str__(self) -> str:
        return f"row {self.number}" if self.id is None else f"row {self.number} ({self.id})"


def row_in(where: Where | str, row: int) -> str:
    """Name one row for a message, with the place that it is in.

    Args:
        where: a split, or the name of other rows.
        row: its index, 0-based.
    """
    return f"{where}, {where.named([row])[0]}" if isinstance(where, Where) else f"{where}, row {row + 1}"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A row that cannot be used, and the reason."""

    row: int
    """Index of the row, 0-based; messages print it 1-based, as numbered in the source."""
    what: str


class Cells(list[_Cell]):
    """The cells of a column of a split, one per row, which are checked together.

    Args:
        where: the split, for messages.
        name: name of the column, or of several that are one input.
        cells: one per row.
    """

    def __init__(self, where: Where, name: str, cells: Iterable[_Cell]) -> None:
        super().__init__(cells)
        self.where, self.name = where, name

    def __str__(self) -> str:
        return f"{self.where}, column {self.name!r}"

    def beside(self, other: Iterable[_Read]) -> Cells[tuple[_Cell, _Read]]:
        """Return this column with the cells of another one beside its own, as pairs."""
        return Cells(self.where, self.name, zip(self, other, strict=True))

    def read(self, read: Callable[[Any], _Read], rule: str) -> Cells[_Read]:
        """Return what ``read`` makes of each cell.

        Raises:
            InputError: naming all rows for which ``read`` raises `ValueError`, with the reasons.
        """
        try:
            return Cells(self.where, self.name, map(read, self))
        except ValueError:  # once more, to name all rows
            faults = []
        for row, value in enumerate(self):
            try:
                read(value)
            except ValueError as error:
                faults.append(Fault(row=row, what=str(error)))
        self.refuse(faults, rule)
        raise AssertionError("a value was refused, and then it was not")

    def refuse(self, faults: Sequence[Fault], rule: str) -> None:
        """Raise one error about all ``faults``, with details of the first five; return if there are none.

        Raises:
            InputError: if there is any fault.
        """
        if not faults:
            return
        first = faults[:SHOWN]
        names = self.where.named([fault.row for fault in first])
        shown = "; ".join(f"{name}: {fault.what}" for name, fault in zip(names, first, strict=True))
        more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        rows = "1 row" if len(faults) == 1 else f"{len(faults)} rows"
        raise InputError(f"{self}: {rows} cannot be used: {shown}{more}. {rule}")


def columns_there(table: Iterable[str]) -> str:
    """Describe which columns there are, for a message about a missing one: "the columns are 'text', 'label'"."""
    names = [*table]
    if len(names) == 1:
        return f"the only column is {shown_columns(names)}"
    return f"the columns are {shown_columns(names)}" if names else "there are no columns"


def check_rows(where: Where, num_rows: int, minimum: int = 1) -> None:
    """Check that a split has rows.

    Raises:
        InputError: if it has fewer rows than ``minimum``.
    """
    if num_rows < minimum:
        raise InputError(
            f"{where}: it has {counted(num_rows, 'row')} but needs at least {minimum}; check the file, or leave the "
            "split out."
        )


def overlap_notice(
    task: str, train: Iterable[str], others: Sequence[str], split: str, what: str = "text"
) -> str | None:
    """Return a notice if inputs of ``split`` are also training inputs; a text and its second text count as one input.

    Args:
        task: name of the task.
        train: one key per training row.
        others: one key per row of ``split``.
        split: name of the other split.
        what: word for the inputs.
    """
    num_shared = len(others) - sum(key not in known for known in (set(train),) for key in others)
    if num_shared == 0:
        return None
    return (
        f"task {task!r}: {num_shared} of {len(others)} {split} rows have the {what} of a training row; "
        f"the {split} metric will look better than it is."
    )


def contradiction_notice(where: Where, keys: Sequence[str], labels: Sequence[str], what: str = "text") -> str | None:
    """Return a notice if rows with the same input have different labels, with the first two of them.

    Args:
        where: the rows.
        keys: one per row; equal keys mean equal inputs.
        labels: one per row.
        what: word for the inputs.
    """
    first: dict[str, int] = {}
    found: dict[str, int] = {}
    for row, key in enumerate(keys):
        if labels[first.setdefault(key, row)] != labels[row]:
            found.setdefault(key, row)
    if not found:
        return None
    key, row = next(iter(found.items()))
    pair, num_rows = [first[key], row], sum(key in found for key in keys)
    names = zip(where.named(pair), pair, strict=True)
    rows = " and ".join(f"{name} ({show(labels[number])})" for name, number in names)
    return (
        f"task {where.task!r}: {counted(len(found), what)} of the {where.split} split, in {num_rows} of its {len(keys)} "
        f"rows, {'has' if len(found) == 1 else 'have'} more than one label, such as that of {rows}."
    )


def names_in(folder: str | Path) -> str:
    """List the content of a folder for a message."""
    names = _visible(folder)
    return known_names(names, limit=12) if names else "nothing"


def nearest_to(path: str) -> str:
    """Return the names that are similar to a missing path, for a message; if none is, some of those that are there.

    Args:
        path: the missing path; what is listed is in the folder at its beginning that exists.
    """
    folder = missing = os.path.abspath(path)
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        missing, folder = folder, os.path.dirname(folder)
    names = _visible(folder)
    alike = difflib.get_close_matches(os.path.basename(missing)[:LONGEST_TYPO], names, n=3)
    if alike:
        return f"nearest in {folder}: {', '.join(alike)}"
    return f"{folder} holds {known_names(names, limit=5) if names else 'nothing'}"


def _visible(folder: str | Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))
