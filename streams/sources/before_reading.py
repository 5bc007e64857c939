"""Check a file before `datasets` reads it, and explain faults for which the messages of `datasets` are too vague."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from continual_petl.errors import InputError
from continual_petl.streams.schema.limits_spec import LimitsSpec
from continual_petl.streams.sources.text_file import TextFile

_MANY_BRACKETS = 500
"""Only lines with more brackets than this are parsed to check their nesting: Python fails at about a thousand levels."""

TOO_DEEP = "nested too deeply (brackets within brackets) to be read: repair this line, or leave it out"


def check_before_reading(place: str, path: str, reader: str, limits: LimitsSpec) -> None:
    """Check a local file before memory is allocated for it; CSV files are checked when their header is read."""
    if "://" in path or reader == "csv":
        return
    if reader in ("parquet", "arrow"):
        from continual_petl.streams.sources.table_file import check_table_file  # imports pyarrow

        check_table_file(place, path, reader, limits)
    elif reader == "json":
        _check_json(TextFile(path, place, limits))
    else:
        for _ in TextFile(path, place, limits).lines():
            pass


def package_missing(task: str, paths: Sequence[str], error: ImportError) -> str:
    """Return the message for a URL that needs an extra package, based on the message of fsspec."""
    name = getattr(error.__cause__, "name", None) or error.name
    install = f"pip install {name}" if name else "install the package that it names"
    return f"task {task!r}, data {', '.join(paths)}: {error}: {install}, or download the files and give their paths."


def bad_line_of(paths: Sequence[str]) -> str | None:
    """Describe the first line that is not a JSON object, with its file; pyarrow reports neither."""
    for path in paths:
        if "://" not in path and {".jsonl", ".ndjson"} & set(Path(path.lower()).suffixes):
            bad_line = _bad_json_line(TextFile(path, path))
            if bad_line is not None:
                return bad_line
    return None


def _check_json(file: TextFile) -> None:
    """Check that a file can be read as text within its limits, and that no line is nested too deeply.

    Raises:
        InputError: if the file cannot be read, or a line is nested too deeply; the message names the line.
    """
    if next(file.pieces(), "").lstrip()[:1] == "[":  # a JSON list, which may be a single line
        for _ in file.pieces():
            pass
        return
    for number, line in enumerate(file.lines(), 1):
        if line.count("[") + line.count("{") > _MANY_BRACKETS:
            try:
                json.loads(line)
            except RecursionError:
                raise InputError(f"{file.place}: line {number:,} is {TOO_DEEP}") from None
            except ValueError:
                pass  # reported when the line is read


def _bad_json_line(file: TextFile) -> str | None:
    """Describe the first line of a JSON Lines file that is not a JSON object."""
    for number, line in enumerate(file.lines(), 1):
        try:
            if line.strip() and not isinstance(json.loads(line.rstrip("\r\n")), dict):
                return f"line {number} of {file.path} is not a JSON object ({{...}})"
        except RecursionError:
            return f"line {number} of {file.path} is {TOO_DEEP}"
        except json.JSONDecodeError as error:
            return f"line {number} of {file.path} is not JSON ({error.msg}, at character {error.pos + 1:,})"
        except ValueError as error:
            return f"line {number} of {file.path} is not JSON ({error})"
    return None
