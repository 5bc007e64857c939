"""Read the records of a file of any size one at a time: .jsonl, .csv, .tsv (each also .gz) and .parquet.

Nothing here imports `datasets`, which takes seconds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from continual_petl.errors import InputError, counted
from continual_petl.streams.schema.limits_spec import LimitsSpec
from continual_petl.streams.sources.before_reading import TOO_DEEP
from continual_petl.streams.sources.checks import separators_hint, shown_columns
from continual_petl.streams.sources.csv_text import fields_advice, table_lines
from continual_petl.streams.sources.memory_errors import memory_reported
from continual_petl.streams.sources.text_file import TextFile

Numbered = tuple[int, dict[str, Any]]
"""The 1-based number of a record's first line (in parquet, of its row), and the record."""
_ROWS_AT_ONCE = 1024


def format_of(path: Path) -> str:
    """Return the suffix of a file's format, without ``.gz``."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return suffixes[-2] if len(suffixes) > 1 and suffixes[-1] == ".gz" else "".join(suffixes[-1:])


def read_records(place: str, path: Path, limits: LimitsSpec) -> Iterator[Numbered]:
    """Read a file piece by piece and yield its records.

    Args:
        place: how error messages begin; names the file.
        path: path of the file.
        limits: maximum sizes of the file and its cells.

    Raises:
        InputError: if the file cannot be read; the message names the line at fault.
    """
    with memory_reported(place):
        if format_of(path) == ".parquet":
            yield from _parquet(place, path, limits)
            return
        file = TextFile(str(path), place, limits)
        yield from _json_lines(file) if format_of(path) == ".jsonl" else _table(file, tabs=format_of(path) == ".tsv")


def _parquet(place: str, path: Path, limits: LimitsSpec) -> Iterator[Numbered]:
    import pyarrow as pa  # a dependency of datasets; importing it takes a fifth of a second
    import pyarrow.parquet as pq

    from continual_petl.streams.sources.table_file import check_table_file, rows_at_once

    try:
        check_table_file(place, str(path), "parquet", limits)
        with pq.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=rows_at_once(file, _ROWS_AT_ONCE)):
                for record in batch.to_pylist():
                    number += 1
                    yield number, record
    except (InputError, MemoryError):  # pyarrow's own errors about memory are also of this type
        raise
    except (OSError, pa.ArrowException, ValueError) as error:
        raise InputError(f"{place}: cannot be read as parquet: {' '.join(str(error).split())}") from error


def _json_lines(file: TextFile) -> Iterator[Numbered]:
    for number, line in enumerate(file.lines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except RecursionError:
            raise InputError(f"{file.place}:{number}: {TOO_DEEP}") from None
        except ValueError as error:
            raise InputError(f"{file.place}:{number}: not JSON: {error}; write one object per line") from error
        if not isinstance(record, dict):
            raise InputError(f'{file.place}:{number}: not a JSON object; write lines such as {{"text": "..."}}')
        yield number, record


def _table(file: TextFile, *, tabs: bool) -> Iterator[Numbered]:
    """Read a table as training does: quotation marks in .tsv are ordinary characters; each line must have all fields."""
    header: list[str] | None = None
    for start, fields in table_lines(file, tabs=tabs):
        if header is None:
            header = _checked_header(file, fields)
        elif fields and len(fields) != len(header):
            raise InputError(
                f"{file.place}:{start}: {counted(len(fields), 'field')}, but the header names "
                f"{counted(len(header), 'column')} ({shown_columns(header)})"
                f"{f'.{hint}' if (hint := separators_hint(header)) else f'; {fields_advice(tabs)}'}"
            )
        elif fields:
            yield start, dict(zip(header, fields, strict=True))


def _checked_header(file: TextFile, header: list[str]) -> list[str]:
    if len(set(header)) < len(header):
        twice = next(name for name, number in Counter(header).items() if number > 1)
        raise InputError(f"{file.place}:1: the header names column {twice!r} twice; give each column a different name")
    return header
