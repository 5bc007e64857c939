"""Read CSV and TSV as plain text.

Values stay text: pandas, which ``datasets`` uses, would otherwise turn the word "None" or "NA" into a missing value and
"007" into 7. In TSV, a quotation mark is an ordinary character (as in the IANA registration of the format): with quoting,
one stray mark would swallow all lines up to the next mark.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from continual_petl.errors import InputError, counted
from continual_petl.streams.schema.limits_spec import LimitsSpec
from continual_petl.streams.sources.checks import separators_hint, shown_columns
from continual_petl.streams.sources.text_file import TextFile


def csv_options(task: str, files: Sequence[str], limits: LimitsSpec) -> dict[str, Any]:
    """Return the arguments for reading these files with ``datasets``.

    Raises:
        InputError: if CSV and TSV are mixed, headers differ, a line has the wrong number of fields, or a file is unreadable.
    """
    import datasets  # type: ignore[import-untyped]  # import takes seconds, and `predict` reads tables without it

    tabs, names = csv_header(task, files, limits)
    style: dict[str, Any] = {"sep": "\t", "quoting": csv.QUOTE_NONE} if tabs else {"sep": ","}
    options = style | {"keep_default_na": False, "na_filter": False, "encoding": "utf-8-sig"}
    if names is not None:
        options["features"] = datasets.Features({name: datasets.Value("string") for name in names})
    return options


def csv_header(task: str, files: Sequence[str], limits: LimitsSpec) -> tuple[bool, list[str] | None]:
    """Return whether tabs separate the columns, and the names of the columns (None if no file is on this machine).

    Raises:
        InputError: as in `csv_options`.
    """
    local = [file for file in files if "://" not in file]
    tabs = {".tsv" in Path(file).suffixes for file in files}
    if len(tabs) > 1:
        raise InputError(f"task {task!r}: csv and tsv files cannot be mixed in one task; convert one of them.")
    headers = {file: _header(task, TextFile(file, f"task {task!r}, {file}", limits), tabs == {True}) for file in local}
    first = next(iter(headers.values()), None)
    for file, header in headers.items():
        if first is not None and sorted(header) != sorted(first):
            raise InputError(
                f"task {task!r}: {file} has the columns {shown_columns(header)}, but {local[0]} has "
                f"{shown_columns(first)}; all "
                "files of a task need the same header line."
            )
    return tabs == {True}, first


def table_lines(file: TextFile, *, tabs: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield the header and the rows of a table, each with the number of its first line.

    Raises:
        InputError: if the header is blank, a cell is too long, or a quotation mark is never closed.
    """
    style: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {}
    lines = _RecordedLines(file.lines(newline=""))
    reader = csv.reader(lines, **style)
    start, row = 1, -1
    while True:
        lines.last.clear()
        try:
            fields = _next(reader, file.max_chars)
        except csv.Error as error:
            raise InputError(f"{file.place}: {_fault(file, error, row, start, len(lines.last))}") from error
        if fields is None:
            return
        if row < 0 and not any(map(str.strip, fields)):
            raise InputError(
                f"{file.place}: there is no header line, as the first line is blank; it must name every column once."
            )
        row += bool(fields)
        if not tabs and lines.ended and _is_open(lines.last, file.max_chars):
            raise InputError(
                f"{file.place}: row {row:,}, in line {start:,}, opens a cell with a quotation mark that is never closed, so "
                'the rest of the file is part of the cell. Close it, or double it ("") if it is part of a quoted text.'
            )
        yield start, fields
        start = reader.line_num + 1


def _is_open(lines: Sequence[str], max_chars: int) -> bool:
    """Return whether a row ends inside quotation marks, so that the next line would be part of it."""
    reader = csv.reader([*lines, "x"])
    _next(reader, max_chars + len("\nx"))
    return _next(reader, max_chars) is None


def _fault(file: TextFile, error: csv.Error, row: int, start: int, num_lines: int) -> str:
    where = f"row {row + 1:,}, in line {start:,}," if row >= 0 else "the header"
    if "field limit" not in str(error):
        return f"{where} cannot be read: {error}; repair the line"
    quote = " (it spans several lines: is a quotation mark not closed?)" if num_lines > 1 else ""
    limits = file.limits
    return (
        f"{where} has a cell of more than {limits.cell_mb:g} million characters (limits.cell_mb){quote}. "
        f"{limits.hint('cell_mb', 2 * limits.cell_mb)}"
    )


class _RecordedLines:
    """The lines of a file; those of the current row are kept in ``last``, for messages about it."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines, self._ahead = lines, next(lines, None)
        self.last: list[str] = []

    @property
    def ended(self) -> bool:
        return self._ahead is None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._ahead is None:
            raise StopIteration
        line, self._ahead = self._ahead, next(self._lines, None)
        self.last.append(line)
        return line


def _next(reader: Iterator[list[str]], max_chars: int) -> list[str] | None:
    """Return the next row's fields; the field size limit of `csv` is global to the process, so it is restored."""
    limit = csv.field_size_limit(max_chars)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(limit)


def fields_advice(tabs: bool) -> str:
    """Return how to repair a line with too many fields."""
    return "no text may hold a tab" if tabs else "put a text that holds a comma in double quotes"


def _header(task: str, file: TextFile, tabs: bool) -> list[str]:
    """Return the header, after checking that every line has the same number of fields.

    If all lines are one field too long, pandas uses the first column as row names and shifts the rest.
    """
    rows = table_lines(file, tabs=tabs)
    _, header = next(rows, (1, []))
    num_ragged, shown = 0, []
    for start, fields in rows:
        if fields and len(fields) != len(header):
            num_ragged += 1
            if num_ragged <= 5:
                shown.append(f"line {start}: {len(fields)}")
    if not header or len(set(header)) < len(header):
        what = f"the header {shown_columns(header)}, which names a column twice" if header else "no header line"
        raise InputError(f"task {task!r}: {file.path} has {what}; the first line must name every column once.")
    if num_ragged:
        more = f"; and {num_ragged - 5} more" if num_ragged > 5 else ""
        repair = f" Repair these lines: {fields_advice(tabs)}."
        raise InputError(
            f"task {task!r}, {file.path}: the header names {counted(len(header), 'column')} ({shown_columns(header)}), but "
            f"{counted(num_ragged, 'line has', 'lines have')} a different number of fields: "
            f"{'; '.join(shown)}{more}.{separators_hint(header) or repair}"
        )
    # A data frame saved with its index has a column without a name; this is pandas' name for it.
    return [name or f"Unnamed: {number}" for number, name in enumerate(header)]
