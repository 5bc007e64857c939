"""Small files of this machine, read without ``datasets``, whose import takes seconds: for a check of what is in them.

What is learned is read by ``datasets`` alone. Here a file is read only where both give the same values; for all others, and
where a file cannot be read, the caller falls back to ``datasets``, which also reports the reason.
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
"""Of all files of a task; what is larger is read faster by `datasets`, its import included."""
_FORMATS = {"csv": (".csv", ".tsv"), "json": (".jsonl",), "parquet": (".parquet",)}
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
"""How texts begin that pyarrow reads as points in time if all of a column are such."""
_LARGEST_INT = 2**63


def light_splits(
    task: str,
    reader: str,
    files: Mapping[SplitName, Sequence[str]],
    expressions: Mapping[SplitName, str],
    limits: LimitsSpec,
) -> dict[SplitName, dict[str, list[Any]]] | None:
    """Return the columns of splits as `read_files` does, or None where `datasets` has to read them.

    Raises:
        InputError: as `read_files` does, of sizes and of the header of a table.
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
        check_before_reading(f"task {task!r}, {path}", path, reader, limits)
        try:
            records += (record for _, record in read_records(path, Path(path), limits))
        except InputError:
            return None  # `datasets` reports the problem, with the same message as in training
    names = dict.fromkeys(name for record in records for name in record)
    columns = {name: [record.get(name) for record in records] for name in names}
    if not columns or not all(_is_alike(values, int(limits.cell_mb * 1e6)) for values in columns.values()):
        return None
    if reader == "csv":  # as `csv_header` calls a column without a name
        return {name or f"Unnamed: {number}": values for number, (name, values) in enumerate(columns.items())}
    return columns


def _is_alike(values: Iterable[Any], max_chars: int) -> bool:
    """Return whether all values have one plain type, or are lists of one, which every reader reads alike."""
    known = [value for value in values if value is not None]
    types = {type(value) for value in known}
    if types == {list}:
        return _is_alike((entry for value in known for entry in value), max_chars)
    if types == {str}:
        return all(len(text) <= max_chars for text in known) and not all(map(_DATE.match, known))
    if types == {int}:
        return all(-_LARGEST_INT <= number < _LARGEST_INT for number in known)
    return types <= {bool} or types <= {float}
