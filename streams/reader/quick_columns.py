"""The columns of long files, without a Python object for each row.

Rows that are read one by one can each be named in a message; a million rows are read faster by their columns.
Parquet and arrow files are read in this way by the same code. Text is parsed by pyarrow (26.0) where it reads what the
standard library would: a csv file in which anything is unusual is left to `read_records`, which says what it is, and so are
those lines of JSON that hold more than one brace at each end.
"""

from __future__ import annotations

import io
import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from continual_petl.errors import InputError
from continual_petl.streams.reader.bounds import memory_reported
from continual_petl.streams.reader.faulty_rows import GONE, FaultyRows, column_of
from continual_petl.streams.reader.json_records import has_lines, rows_of_lines
from continual_petl.streams.reader.records import LINES, format_of, reader_of
from continual_petl.streams.reader.text_file import TextFile
from continual_petl.streams.reader.wanted import Wanted
from continual_petl.streams.schema.limits_spec import LimitsSpec

_BYTES_AT_ONCE = 2**22
_NO_JSON = re.compile(rb"(Inf|-NaN)[ \t\r\n]*[,\]}]")
"""Numbers that pyarrow reads and that are no JSON, nor what Python writes in place of it."""
_MOST_LISTS = 500
"""Maximum number of lists among the lines that pyarrow parses; Python refuses some 1,000 of them within each other."""


def quick_columns(
    place: str, path: str, limits: LimitsSpec, wanted: Wanted, names: Sequence[str], reader: str | None = None
) -> dict[str, list[Any]] | None:
    """Return the columns of a file as `read_records` reads them; None if it has to be read row by row.

    Args:
        place: beginning of the messages; names the file.
        path: path of the file.
        limits: limits of the task.
        wanted: what is read: some columns by name.
        names: the names of all columns of the file, in their order; none if each row names its own.
        reader: as in `read_records`.

    Returns:
        Columns of equal lengths; a cell that a row does not have is `GONE`, or None if other rows have one.

    Raises:
        InputError: as `read_records` does, of JSON, parquet and arrow files.
    """
    kind = reader or reader_of(path)
    if not wanted.columns:
        return None
    if kind == "json":
        file = TextFile(path, place, limits)
        with memory_reported(place):
            is_quick = has_lines(file, wanted.lists, named_so=format_of(path) in LINES)
            return _of_json_lines(file, {name: [] for name in wanted.columns}) if is_quick else None
    read = {name: list[Any]() for name in names if name in wanted.columns}
    if kind not in ("csv", "parquet", "arrow") or not read:
        return None
    with memory_reported(place):
        if kind == "csv":
            return _of_csv(TextFile(path, place, limits), read, names, tabs=format_of(path) == ".tsv")
        from continual_petl.streams.reader.columnar import columns_by_part  # importing pyarrow takes a moment

        for part in columns_by_part(place, path, kind, limits, wanted):
            for name, cells in part.items():
                read[name] += cells
    return read


def _of_json_lines(file: TextFile, read: dict[str, list[Any]]) -> dict[str, list[Any]]:
    types: dict[str, Any] | None = None
    number, repeating, faulty = 1, {*read}, FaultyRows(file.place, "line")
    at_once = min(_BYTES_AT_ONCE // 4, file.limits.cell_chars // 2 + 1)  # longer blocks are not parsed as one

    def add(block: str, table: Future[Any] | None) -> None:
        nonlocal number, types
        cells = None if table is None or types is None else _of_table(table.result(), types, block, repeating)
        if cells is None:
            lines = io.StringIO(block, newline="\n")
            rows = [row for _, row in rows_of_lines(number, lines, file, faulty, read.keys())]
            cells = {name: column_of(rows, name) for name in read}
            types = types or _types_of(cells)
            number += block.count("\n")
        else:
            number += len(next(iter(cells.values())))  # each line is a row
        for name, column in read.items():
            column += cells[name]

    with ThreadPoolExecutor(1) as thread:  # parses a block while the one before it becomes Python objects
        before: tuple[str, Future[Any] | None] | None = None
        for block in file.blocks(at_once=at_once):
            data = None if types is None or len(block) > file.limits.cell_chars else _flat_lines(block)
            parsed = None if types is None or data is None else thread.submit(_parsed, data, types)
            if before is not None:
                add(*before)
            before = block, parsed
            if types is None:
                add(*before)
                before = None
        if before is not None:
            add(*before)
    faulty.check()
    return read


def _types_of(columns: Mapping[str, Sequence[Any]]) -> dict[str, Any] | None:
    """Return the arrow types of columns of texts, integers or booleans; None if a column holds something else."""
    import pyarrow as pa

    types = {str: pa.string(), int: pa.int64(), bool: pa.bool_()}
    found = {name: {*map(type, cells)} - {type(None), type(GONE)} or {str} for name, cells in columns.items()}
    if all(len(kinds) == 1 and kinds <= types.keys() for kinds in found.values()):
        return {name: types[kinds.pop()] for name, kinds in found.items()}
    return None


def _flat_lines(block: str) -> bytes | None:
    """Return lines that hold one object each, without objects in them, as bytes; None if some line needs a closer look.

    pyarrow takes objects one after the other, wherever their lines end, and ends the process if there is something else
    between them. So each line may have only two braces, its first and last character: then it is one object, or no JSON.
    """
    data = block.removesuffix("\n").encode()
    num_lines = data.count(b"\n") + 1
    between = data.startswith(b"{") and data.endswith(b"}") and data.count(b"}\n{") == num_lines - 1
    if not between or not data.count(b"{") == data.count(b"}") == num_lines or data.count(b"[") > _MOST_LISTS:
        return None
    has_name = b"Inf" in data or b"-NaN" in data  # searching for the pattern takes as long as parsing
    return None if has_name and _NO_JSON.search(data) else data


def _parsed(data: bytes, types: Mapping[str, Any]) -> Any:
    """Return a table of lines that hold one object each; None if pyarrow reads something else in them."""
    import pyarrow as pa
    import pyarrow.json as arrow_json

    try:
        table = arrow_json.read_json(
            pa.BufferReader(data),
            arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            arrow_json.ParseOptions(explicit_schema=pa.schema(types), unexpected_field_behavior="ignore"),
        )
    except (OSError, ValueError):  # pyarrow's errors are of these types, too
        return None
    return table if len(table) == data.count(b"\n") + 1 else None


def _of_table(table: Any, names: Collection[str], block: str, repeating: set[str]) -> dict[str, list[Any]] | None:
    """Return the columns of a table of some lines; None if there is none, or if it does not say what a column holds."""
    if table is None:
        return None
    found = dict[str, list[Any]]()
    for name in names:
        if table[name].null_count < len(table):
            found[name] = _cells(name, table[name], repeating)
        elif json.dumps(name, ensure_ascii=False) in block or "\\" in block:  # null, or not there
            return None
        else:
            found[name] = [GONE] * len(table)
    return found


def _cells(name: str, column: Any, repeating: set[str]) -> list[Any]:
    """Return the cells of a column; equal texts are one object, until the column is found not to repeat its texts."""
    from continual_petl.streams.reader.columnar import cells_of

    if name in repeating:
        encoded = column.combine_chunks().dictionary_encode()
        if 2 * len(encoded.dictionary) <= len(encoded):
            return cells_of(encoded)
        repeating.remove(name)
    return cells_of(column)


def _of_csv(
    file: TextFile, read: dict[str, list[Any]], names: Sequence[str], *, tabs: bool
) -> dict[str, list[Any]] | None:
    if any("\n" in name or "\r" in name for name in names):
        return None
    parser = _CsvParser(file, read, names, tabs=tabs)
    parts, size, marks = list[bytes](), 0, 0
    try:
        for block in file.blocks(newline=""):
            parts.append(block.encode())
            size += len(parts[-1])
            marks += 0 if tabs else block.count('"')
            if size > _BYTES_AT_ONCE and marks % 2 == 0:  # otherwise a quoted text goes on
                parser.parse(parts)
                parts, size = [], 0
            elif size > 16 * _BYTES_AT_ONCE:
                return None
        if parts:
            parser.parse(parts)
    except (InputError, OSError, ValueError):
        return None
    return read


class _CsvParser:
    """Adds the rows of a csv file, some whole lines after the others, to columns.

    pyarrow gets texts in memory and works in this thread: when it reads from Python in threads of its own, a file that is
    left before its end can end the process.

    Args:
        file: the file.
        read: the columns to add to.
        names: the names of all columns.
        tabs: as in `delimited_records`.
    """

    def __init__(self, file: TextFile, read: dict[str, list[Any]], names: Sequence[str], *, tabs: bool) -> None:
        import pyarrow as pa
        import pyarrow.csv as arrow_csv

        self._limits, self._read, self._names, self._skipped = file.limits, read, names, 1
        self._end = secrets.token_hex(16)  # a line that nobody can write
        self._others: list[str] = []
        self._repeating = {*read}
        self._format = arrow_csv.ParseOptions(
            delimiter="\t" if tabs else ",",
            quote_char=False if tabs else '"',
            newlines_in_values=not tabs,
            invalid_row_handler=self._other,
        )
        self._types = arrow_csv.ConvertOptions(
            include_columns=[*read], column_types=dict.fromkeys(read, pa.string()), check_utf8=False
        )

    def _other(self, row: Any) -> str:
        self._others.append(row.text)
        return "skip" if row.text == self._end else "error"

    def parse(self, lines: Sequence[bytes]) -> None:
        """Add the rows of some lines, in pieces that end where a line does.

        Raises:
            ValueError: if a row is not like the others, a quotation mark is not closed, or a text is too long.
        """
        import pyarrow as pa
        import pyarrow.csv as arrow_csv

        from continual_petl.streams.reader.columnar import is_beyond

        first = b"" if self._skipped else b"\n"  # pyarrow drops a byte order mark that text begins with
        data = b"".join([first, *lines, f"\n{self._end}\n".encode()])
        whole = arrow_csv.ReadOptions(
            column_names=self._names, skip_rows=self._skipped, block_size=len(data) + 1, use_threads=False
        )
        table = arrow_csv.read_csv(pa.BufferReader(data), whole, self._format, self._types)
        alone = len(self._names) == 1  # then the last line is a row
        ends = table.column(0).slice(max(0, len(table) - 1)).to_pylist() if alone else self._others
        if ends != [self._end] or any(is_beyond(table[name], self._limits) for name in self._read):
            raise ValueError("a quotation mark is not closed, or a text is too long")
        self._others, self._skipped = [], 0
        for name, cells in self._read.items():
            cells += _cells(name, table[name].slice(0, len(table) - alone), self._repeating)
