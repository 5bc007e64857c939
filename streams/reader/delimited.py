"""Rows of csv and tsv files, as plain text.

Values stay text: a reader that guesses types turns the word "None" or "NA" into a missing value and "007" into 7. In tsv, a
quotation mark is an ordinary character (as in the IANA registration of the format): with quoting, one stray mark would
swallow all lines up to the next mark.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from continual_petl.errors import InputError, counted, known_names, show
from continual_petl.streams.reader.faulty_rows import FULL_ROWS, Bad, Numbered
from continual_petl.streams.reader.text_file import TextFile
from continual_petl.streams.reader.wanted import Wanted

_END = "\ud800end of file"
"""A line after the last one, which no file can have; it is part of a cell if a quotation mark is not closed."""
_ROWS_AT_ONCE, _CHARS_AT_ONCE = 256, 2**20


def delimited_records(file: TextFile, bad: Bad, wanted: Wanted, *, tabs: bool) -> Iterator[Numbered]:
    """Yield the rows of a table, each with the number of its first line.

    A column without a name, such as the index of a data frame, is named as pandas names it: ``Unnamed: 0``.

    Args:
        file: the file.
        bad: told of the lines with another number of fields than the header.
        wanted: what is read; the first rows have all columns.
        tabs: whether tabs separate the fields, and quotation marks mean nothing.

    Raises:
        InputError: if the header is missing or names a column twice, a cell is too long, or a quotation mark is never closed.
    """
    rows = _rows(file, tabs=tabs)
    _, first = next(rows, (1, []))
    if not first:
        raise InputError(f"{file.place}: there is no header line; the first line must name every column once.")
    names = [name or f"Unnamed: {number}" for number, name in enumerate(first)]
    if twice := [name for name, number in Counter(names).items() if number > 1]:
        raise InputError(
            f"{file.place}: the header names column {show(twice[0])} twice"
            f"{' (the name that a column without a name gets)' * (first.count(twice[0]) == 1)}; the first line must name "
            "every column once."
        )
    columns = wanted.columns
    wanted.header(names)
    kept = [number for number, name in enumerate(names) if columns is None or name in columns]
    kept_names, pick = [names[number] for number in kept], _picker(kept)
    repair = "no text may hold a tab" if tabs else "put a text that contains a comma in double quotes"
    repair = separators_hint(names).strip() or f"Repair these lines: {repair}."
    advice = f"The header names {counted(len(names), 'column')} ({shown_columns(names)}). {repair}"
    left = FULL_ROWS
    for start, fields in rows:
        if len(fields) != len(names):
            if fields:
                bad(start, f"{counted(len(fields), 'field')} instead of {len(names)}", advice)
        elif left > 0:
            left -= 1
            yield start, dict(zip(names, fields, strict=True))
        else:
            yield start, dict(zip(kept_names, pick(fields), strict=True))


def _picker(places: Sequence[int]) -> Any:
    if len(places) > 1:
        return itemgetter(*places)
    return lambda fields: [fields[place] for place in places]


def shown_columns(names: Iterable[str], wanted: str = "") -> str:
    """Return a list of column names for a message, shortened."""
    return known_names([show(name) for name in names], wanted)


def separators_hint(columns: Collection[str]) -> str:
    """Return a hint if a single column looks like several with a different separator; otherwise nothing."""
    if len(columns) != 1 or not set(";|\t") & set(next(iter(columns))):
        return ""
    return (
        ' Are these several columns? .csv files use commas and .tsv files tabs: save the table that way, with "..." around '
        "texts that contain a comma."
    )


def _rows(file: TextFile, *, tabs: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield the header and the rows of a table, each with the number of its first line.

    Raises:
        InputError: if the header is blank, a cell is too long, or a quotation mark is never closed.
    """
    style: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {}
    start, row = 1, -1
    for end, fields in _parsed(file, style):
        if isinstance(fields, csv.Error):
            raise InputError(f"{file.place}: {_fault(file, fields, row, start, end - start)}") from fields
        if fields == [_END] and start == end:  # otherwise a quotation mark is the last character
            return
        if row < 0 and not any(map(str.strip, fields)):
            raise InputError(
                f"{file.place}: there is no header line, as the first line is blank; it must name every column once."
            )
        row += bool(fields)
        if fields and fields[-1].endswith(_END):
            raise InputError(
                f"{file.place}: row {row:,}, on line {start:,}, opens a cell with a quotation mark that is never closed, so "
                'the rest of the file is part of the cell. Close it, or double it ("") if it is part of a quoted text.'
            )
        yield start, fields
        start = end + 1


def _parsed(file: TextFile, style: Mapping[str, Any]) -> Iterator[tuple[int, list[str] | csv.Error]]:
    """Yield rows with the numbers of their last lines; the field size limit of `csv` is global, so it is restored.

    Raises:
        InputError: if the lines of a row are together longer than a line may be.
    """
    parsed = begun = last = (
        0  # characters up to the line that is parsed, and where its row began; the last line before it
    )

    def lines() -> Iterator[str]:
        nonlocal parsed
        for block in file.blocks(newline=""):
            if parsed - begun > file.max_line:
                raise InputError(
                    f"{file.place}: the row after line {last:,} is longer than {file.max_line:,} characters. "
                    f"{file.limits.hint('cell_mb', 2 * file.limits.cell_mb)}"
                )
            parsed += len(block)
            yield from io.StringIO(block, newline="")
        yield _END

    reader = csv.reader(lines(), **style)
    found: list[tuple[int, list[str] | csv.Error]] = [(0, [])]
    while found:
        found, limit = [], csv.field_size_limit(file.limits.cell_chars)
        first = begun = parsed
        try:
            for fields in reader:
                found.append((reader.line_num, fields))
                begun, last = parsed, reader.line_num
                if len(found) == _ROWS_AT_ONCE or begun - first > _CHARS_AT_ONCE:
                    break
        except csv.Error as error:
            found.append((reader.line_num, error))
        finally:
            csv.field_size_limit(limit)
        yield from found


def _fault(file: TextFile, error: csv.Error, row: int, start: int, more_lines: int) -> str:
    where = f"row {row + 1:,}, on line {start:,}," if row >= 0 else "the header"
    if "field limit" not in str(error):
        return f"{where} cannot be read: {error}; repair the line"
    quote = " (it spans several lines: is a quotation mark not closed?)" if more_lines else ""
    limits = file.limits
    return (
        f"{where} has a cell of more than {limits.cell_mb:g} million characters (limits.cell_mb){quote}. "
        f"{limits.hint('cell_mb', 2 * limits.cell_mb)}"
    )
