"""Checks of a file before `datasets` reads it, and better messages where those of `datasets` say too little."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from continual_petl.streams.schema.limits_spec import LimitsSpec
from continual_petl.streams.sources.json_text import bad_json_line, check_json
from continual_petl.streams.sources.text_file import TextFile


def check_before_reading(place: str, path: str, reader: str, limits: LimitsSpec) -> None:
    """Check a local file before memory is allocated for it; a csv file was checked with its header."""
    if "://" in path or reader == "csv":
        return
    if reader in ("parquet", "arrow"):
        from continual_petl.streams.sources.table_file import check_table_file  # with pyarrow

        check_table_file(place, path, reader, limits)
    elif reader == "json":
        check_json(TextFile(path, place, limits))
    else:
        for _ in TextFile(path, place, limits).lines():
            pass


def package_missing(task: str, paths: Sequence[str], error: ImportError) -> str:
    """Return a message for an address that needs an extra package, using that of fsspec."""
    name = getattr(error.__cause__, "name", None) or error.name
    install = f"pip install {name}" if name else "install the package that it names"
    return f"task {task!r}, data {', '.join(paths)}: {error}: {install}, or download the files and give their paths."


def bad_line_of(paths: Sequence[str]) -> str | None:
    """Return which line of which file is not a JSON object; pyarrow says neither."""
    for path in paths:
        if "://" not in path and {".jsonl", ".ndjson"} & set(Path(path.lower()).suffixes):
            found = bad_json_line(TextFile(path, path))
            if found is not None:
                return found
    return None
