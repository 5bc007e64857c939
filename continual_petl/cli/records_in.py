"""Records of files, one at a time however large a file is: .jsonl, .csv, .tsv (each also .gz) and .parquet."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from continual_petl.errors import InputError

Numbered = tuple[int, dict[str, Any]]
"""The number of a record's first line, or in parquet of its row, from 1; and the record."""
_ROWS_AT_ONCE = 1024


def format_of(path: Path) -> str:
    """Return the suffix that tells a file's format, ``.gz`` aside."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return suffixes[-2] if len(suffixes) > 1 and suffixes[-1] == ".gz" else "".join(suffixes[-1:])


def read_records(path: Path) -> Iterator[Numbered]:
    """Yield the records of a file while it is read.

    Raises:
        InputError: if it cannot be read, with the line that is at fault.
    """
    if format_of(path) == ".parquet":
        return _parquet(path)
    return _json_lines(path) if format_of(path) == ".jsonl" else _table(path)


def check_file(path: Path) -> None:
    """Refuse what is not there, and what cannot be read twice."""
    if not path.exists():
        raise InputError(f"--input {path}: there is no such file; check the path, it counts from {Path.cwd()}")
    if not path.is_file():
        what = "a folder" if path.is_dir() else "no plain file"
        raise InputError(f"--input {path}: this is {what}; give a file, or one row a line on standard input")


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file with their ends; only line feeds end one.

    Others would also cut a text at U+2028, which JSON and texts may hold.
    """
    number = 0
    try:
        with _open(path) as handle:
            for number, line in enumerate(handle, 1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"--input {path}: cannot be read: line {number}: {error}; give a file of UTF-8 text"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"--input {path}: cannot be read: {error}; give a whole file that you may read") from error


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    if path.suffix.lower() == ".gz":
        return gzip.open(path)  # a text file inside: its lines are read as they are unpacked
    return path.open("rb")


def _parquet(path: Path) -> Iterator[Numbered]:
    import pyarrow as pa  # comes with datasets; a fifth of a second to import
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
                for record in batch.to_pylist():
                    number += 1
                    yield number, record
    except (OSError, pa.ArrowException, ValueError) as error:
        raise InputError(f"--input {path}: cannot be read as parquet: {' '.join(str(error).split())}") from error


def _json_lines(path: Path) -> Iterator[Numbered]:
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"--input {path}:{number}: not JSON: {error}; write one object a line") from error
        if not isinstance(record, dict):
            raise InputError(f'--input {path}:{number}: not a JSON object; write lines such as {{"text": "..."}}')
        yield number, record


def _table(path: Path) -> Iterator[Numbered]:
    """Read a table as training data is read: quotation marks mean nothing in .tsv, and every line has every field."""
    style: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if format_of(path) == ".tsv" else {}
    reader = csv.reader(read_lines(path), **style)
    start, header = 1, None
    while True:
        try:
            fields = _next(reader)
        except csv.Error as error:
            raise InputError(f"--input {path}:{start}: not a table: {error}; repair the line") from error
        if fields is None:
            return
        if header is None:
            header = _checked_header(path, fields)
        elif fields and len(fields) != len(header):
            raise InputError(
                f"--input {path}:{start}: {len(fields)} fields, but the header names {len(header)} columns "
                f"({', '.join(header)}); put a text that holds a comma in double quotes"
            )
        elif fields:
            yield start, dict(zip(header, fields, strict=True))
        start = reader.line_num + 1


def _next(reader: Iterator[list[str]]) -> list[str] | None:
    """Return the next line's fields; the limit of a field is one for all readers of the process, so it is put back."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(limit)


def _checked_header(path: Path, header: list[str]) -> list[str]:
    twice = [name for number, name in enumerate(header) if name in header[:number]]
    if twice:
        raise InputError(f"--input {path}:1: the header names column {twice[0]!r} twice; give each its own name")
    return header
