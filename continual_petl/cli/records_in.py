"""Records of the file that is given with --input."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from continual_petl.errors import InputError
from continual_petl.streams.schema.limits_spec import LimitsSpec
from continual_petl.streams.sources import records
from continual_petl.streams.sources.records import Numbered
from continual_petl.streams.sources.records import format_of as format_of
from continual_petl.streams.sources.text_file import TextFile


def text_file(path: Path, limits: LimitsSpec) -> TextFile:
    """Return a text file given with --input."""
    return TextFile(str(path), f"--input {path}", limits)


def read_records(path: Path, limits: LimitsSpec) -> Iterator[Numbered]:
    """Yield the records of a file while it is read; see `records.read_records`."""
    return records.read_records(f"--input {path}", path, limits)


def check_file(path: Path) -> None:
    """Refuse what is not there, and what cannot be read twice."""
    if not path.exists():
        raise InputError(f"--input {path}: there is no such file; check the path, it counts from {Path.cwd()}")
    if not path.is_file():
        raise InputError(f"--input {path}: this is a folder; give a file, or one row a line on standard input")
