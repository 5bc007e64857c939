"""The columns of long files, without a Python object for each row.

Rows that are read one by one can each be named in a message; the columns of a million rows are read five times as fast at
once. Parquet and arrow files are read in this way by the same code, csv by pyarrow, whose rules for quotation marks are
those of the standard library. A csv file in which anything is unusual is left to `read_records`, which says what it is. JSON
is not read by pyarrow (26.0): ``null`` between two objects ends the process.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from continual_petl.errors import InputError
from continual_petl.streams.reader.records import format_of, reader_of
from continual_petl.streams.reader.text_file import TextFile
from continual_petl.streams.reader.wanted import Wanted
from continual_petl.streams.schema.limits_spec import LimitsSpec

_BYTES_AT_ONCE = 2**22


def quick_columns(
    place: str, path: str, limits: LimitsSpec, wanted: Wanted, names: Sequence[str], reader: str | None = None
) -> dict[str, list[Any]] | None:
    """Return the columns of a file as `read_records` reads them; None if it has to be read row by row.

    Args:
        place: beginning of the messages; names the file.
        path: path of the file.
        limits: limits of the task.
        wanted: what is read: some columns by name.
        names: all columns of the file, as `Wanted.header` was told.
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
    import pyarrow as pa
    import pyarrow.csv as arrow_csv

    from continual_petl.streams.reader.columnar import cells_of, is_beyond

    if any("\n" in name or "\r" in name for name in names):
        return None
    end, others = secrets.token_hex(16), list[str]()  # nobody can write a file with this line

    def other(row: Any) -> str:
        others.append(row.text)
        return "skip" if row.text == end else "error"

    try:
        batches = arrow_csv.open_csv(
            _Encoded(file, f"\n{end}\n"),
            arrow_csv.ReadOptions(column_names=names, skip_rows=1, block_size=_BYTES_AT_ONCE),
            arrow_csv.ParseOptions(
                delimiter="\t" if tabs else ",",
                quote_char=False if tabs else '"',
                newlines_in_values=not tabs,
                invalid_row_handler=other,
            ),
            arrow_csv.ConvertOptions(include_columns=[*read], column_types=dict.fromkeys(read, pa.string())),
        )
        repeating: set[str] = {*read}
        for batch in batches:
            if any(is_beyond(batch[name], file.limits) for name in read):
                return None
            for name, cells in read.items():
                column = batch[name]
                encoded = column.dictionary_encode() if name in repeating else None  # equal texts are one object then
                if encoded is not None and 2 * len(encoded.dictionary) > len(encoded):
                    repeating.remove(name)
                    encoded = None
                cells += cells_of(column if encoded is None else encoded)
    except (InputError, pa.ArrowException, OSError, ValueError):
        return None
    if len(names) == 1:
        (cells,) = read.values()
        return read if cells and cells.pop() == end else None
    return read if others == [end] else None  # otherwise a quotation mark is not closed


class _Encoded(io.RawIOBase):
    """The text of a file, without a byte order mark, and what is added to its end, as bytes."""

    def __init__(self, file: TextFile, end: str) -> None:
        self._left = b""
        self._pieces = self._encoded(file, end)

    def _encoded(self, file: TextFile, end: str) -> Iterator[bytes]:
        for block in file.blocks(newline=""):  # pyarrow (26.0) loses a line feed if a block ends before it, and
            if "\0" in block or len(block) > _BYTES_AT_ONCE / 4:  # quotation marks if there is a NUL character
                raise ValueError(f"{file.place}: there is a NUL character, or a long line")
            yield block.encode()
        yield end.encode()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._left = self._left or next(self._pieces, b"")
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size
