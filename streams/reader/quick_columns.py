"""The columns of long files, without a Python object for each row.

Rows that are read one by one can each be named in a message; a million rows are read faster by their columns.
Parquet and arrow files are read in this way by the same code, csv by pyarrow, whose rules for quotation marks are
those of the standard library. A csv file in which anything is unusual is left to `read_records`, which says what it is. JSON
is not read by pyarrow (26.0): ``null`` between two objects ends the process.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from continual_petl.errors import InputError
from continual_petl.streams.reader.records import format_of, reader_of
from continual_petl.streams.reader.text_file import TextFile
from continual_petl.streams.reader.wanted import Wanted
from continual_petl.streams.schema.limits_spec import LimitsSpec

_CHARS_AT_ONCE = 2**20


def quick_columns(
    place: str, path: str, limits: LimitsSpec, wanted: Wanted, names: Sequence[str], reader: str | None = None
) -> dict[str, list[Any]] | None:
    """Return the columns of a file as `read_records` reads them; None if it has to be read row by row.

    Args:
        place: beginning of the messages; names the file.
        path: path of the file.
        limits: limits of the task.
        wanted: what is read: some columns by name.
        names: the names of all columns of the file, in their order.
        reader: as in `read_records`.

    Raises:
        InputError: as `read_records` does, of parquet and arrow files.
    """
    kind = reader or reader_of(path)
    if kind not in ("csv", "parquet", "arrow") or not wanted.columns or not wanted.columns & {*names}:
        return None
    read = {name: list[Any]() for name in names if name in wanted.columns}
    if kind == "csv":
        return _of_csv(TextFile(path, place, limits), read, names, tabs=format_of(path) == ".tsv")
    from continual_petl.streams.reader.columnar import columns_by_part  # importing pyarrow takes a moment

    for part in columns_by_part(place, path, kind, limits, wanted):
        for name, cells in part.items():
            read[name] += cells
    return read


def _of_csv(
    file: TextFile, read: dict[str, list[Any]], names: Sequence[str], *, tabs: bool
) -> dict[str, list[Any]] | None:
    if any("\n" in name or "\r" in name for name in names):
        return None
    parser = _CsvParser(file, read, names, tabs=tabs)
    parts, size, marks = list[str](), 0, 0
    try:
        for block in file.blocks(newline=""):
            parts.append(block)
            size += len(block)
            marks += 0 if tabs else block.count('"')
            if size > _CHARS_AT_ONCE and marks % 2 == 0:  # otherwise a quoted text goes on
                parser.parse("".join(parts))
                parts, size = [], 0
            elif size > 16 * _CHARS_AT_ONCE:
                return None
        if parts:
            parser.parse("".join(parts))
    except (InputError, OSError, ValueError):  # pyarrow's errors are of these types, too
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
        self._types = arrow_csv.ConvertOptions(include_columns=[*read], column_types=dict.fromkeys(read, pa.string()))

    def _other(self, row: Any) -> str:
        self._others.append(row.text)
        return "skip" if row.text == self._end else "error"

    def parse(self, lines: str) -> None:
        """Add the rows of some lines.

        Raises:
            ValueError: if a row is not like the others, a quotation mark is not closed, or a text is too long.
        """
        import pyarrow as pa
        import pyarrow.csv as arrow_csv

        from continual_petl.streams.reader.columnar import cells_of, is_beyond

        lines = lines if self._skipped else "\n" + lines  # pyarrow drops a byte order mark that text begins with
        data = f"{lines}\n{self._end}\n".encode()
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
            cells += cells_of(self._encoded(name, table[name].slice(0, len(table) - alone)))

    def _encoded(self, name: str, column: Any) -> Any:
        """Return a column of few different texts as a dictionary: equal texts are one object then."""
        if name not in self._repeating:
            return column
        encoded = column.combine_chunks().dictionary_encode()
        if 2 * len(encoded.dictionary) <= len(encoded):
            return encoded
        self._repeating.remove(name)
        return column
