"""Read small local files without ``datasets``, whose import takes seconds, to check their content.

For learning, data is always read by ``datasets``. Here, a file is only read if both ways give the same values; for all other
files, including unreadable ones, the caller falls back to ``datasets``, which also reports the reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from continual_petl.errors import InputError
from continual_petl.streams.schema.limits_spec import LimitsSpec
from continual_petl.streams.schema.stream_spec import SplitName
from continual_petl.streams.sources.before_reading import check_before_reading
from continual_petl.streams.sources.csv_text import csv_header
from continual_petl.streams.sources.records import format_of, read_records

MAX_BYTES = 20 * 10**6
"""Maximum total size of a task's files; `datasets` reads larger ones faster, even including its import."""
_FORMATS = {"csv": (".csv", ".tsv"), "json": (".jsonl",), "parquet": (".parquet",)}
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
"""Beginning of a date; if all texts of a column are dates, pyarrow reads them as timestamps."""
_LARGEST_INT = 2**63


def small_file_splits(
    task: str,
    reader: str,
    files: Mapping[SplitName, Sequence[str]],
    expressions: Mapping[SplitName, str],
    limits: LimitsSpec,
) -> dict[SplitName, dict[str, list[Any]]] | None:
    """Return the columns of splits as `read_files` does, or None if `datasets` has to read them.

    Raises:
        InputError: like `read_files`, if a file is too large or the header of a table is invalid.
    """
    paths = [path for names in files.values() for path in names]
    if any("://" in path or format_of(Path(path)) not in _FORMATS.get(reader, ()) for path in paths):
        return None
    if any(split not in files or split != expression for split, expression in expressions.items()):
        return None
    if sum(map(os.path.getsize, paths)) > MAX_BYTES:
        return None
    if reader == "csv":
        csv_header(task, paths, limits)
    found = {}
    for split in expressions:
        columns = _columns(task, files[split], reader, limits)
        if columns is None:
            return None
        found[split] = columns
    return found


def _columns(task: str, paths: Sequence[str], reader: str, limits: LimitsSpec) -> dict[str, list[Any]] | None:
    records: list[dict[str, Any]] = []
    for path in paths:
        try:
            check_before_reading(f"task {task!r}, {path}", path, reader, limits)
        except InputError:
            raise
        except Exception:  # pyarrow raises many kinds for damaged files
            return None  # as below
        try:
            records += (record for _, record in read_records(path, Path(path), limits))
        except InputError:
            return None  # `datasets` reports the problem, with the same message as in training
    names = dict.fromkeys(name for record in records for name in record)
    columns = {name: [record.get(name) for record in records] for name in names}
    if not columns or not all(_is_alike(values, int(limits.cell_mb * 1e6)) for values in columns.values()):
        return None
    if reader == "csv":  # a column without a name is named as in `csv_header`
        return {name or f"Unnamed: {number}": values for number, (name, values) in enumerate(columns.items())}
    return columns


def _is_alike(values: Iterable[Any], max_chars: int) -> bool:
    """Return whether all values, or all items of lists, have one plain type, so that all readers return the same values."""
    known = [value for value in values if value is not None]
    types = {type(value) for value in known}
    if types == {list}:
        return _is_alike((entry for value in known for entry in value), max_chars)
    if types == {str}:
        return all(len(text) <= max_chars for text in known) and not all(map(_DATE.match, known))
    if types == {int}:
        return all(-_LARGEST_INT <= number < _LARGEST_INT for number in known)
    return types <= {bool} or types <= {float}
