"""Writing so that a kill at any instant leaves the old state or the new one, never a mixture."""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from continual_petl.errors import StoreError


def write_file(path: Path, content: bytes) -> None:
    """Replace a file's content: write beside it, flush to disk, rename over it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with beside.open("wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Replace a file by a JSON value, indented and with sorted keys, so that versions can be compared by eye."""
    write_file(path, (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode())


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give a folder to fill; it appears under its own name, complete and flushed, only when the block ends well.

    Raises:
        StoreError: if the folder already exists.
    """
    if path.exists():
        raise StoreError(f"{path} already exists; a learned task is never overwritten")
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    # What other processes left behind when they were killed; the caller holds the lock, so none of them is alive.
    for stale in path.parent.glob(f".{glob.escape(path.name)}.*.new"):
        shutil.rmtree(stale)
    beside.mkdir(parents=True)
    try:
        yield beside
        for file in beside.iterdir():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        sync_folder(beside)
        beside.rename(path)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    sync_folder(path.parent)


def append_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append JSON lines and flush them to disk. A torn last line, left by a kill, is cut off first."""
    with path.open("ab+") as handle:
        end = _end_of_last_line(path)
        if handle.seek(0, os.SEEK_END) != end:
            handle.truncate(end)
            handle.seek(end)
        handle.write(b"".join(json.dumps(row, sort_keys=True, allow_nan=False).encode() + b"\n" for row in rows))
        handle.flush()
        os.fsync(handle.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete JSON lines of a file; a torn last line was never committed and does not count.

    Raises:
        StoreError: if any other line is not a JSON object.
    """
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes()[: _end_of_last_line(path)].splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise StoreError(f"{path}:{number}: not a JSON line ({error}); the file is damaged") from error
        if not isinstance(row, dict):
            raise StoreError(f"{path}:{number}: expected a JSON object, found {type(row).__name__}")
        rows.append(row)
    return rows


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that a rename survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _end_of_last_line(path: Path) -> int:
    return path.read_bytes().rfind(b"\n") + 1
