"""Read untrusted or damaged files safely: regular files only, of limited size, byte for byte as written.

A JSON file of a store is accepted only if its bytes are exactly those that `atomic.write_json` writes for its content.
Deviations that a parser would forgive (a duplicate key, ``1E-05`` for ``1e-05``) count as changes.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from continual_petl.errors import StoreError
from continual_petl.store.files.atomic import json_bytes

Stamp = tuple[int, int, int, int]
"""Inode, modification time, size and change time, with times in nanoseconds; the change time cannot be forged."""

MAX_JSON_BYTES = 64 * 2**20
"""Maximum size of a JSON file: enough for more tensors and labels than any bank has."""
MAX_LINE_BYTES = 16 * 2**20
"""Maximum size of a line: enough for a result row with more tasks than any stream has."""


def entries(folder: Path) -> list[Path]:
    """Return the entries of a folder in the store, sorted by name; see `inodes`."""
    return [folder / name for name in sorted(inodes(folder))]


def inodes(folder: Path) -> dict[str, int]:
    """Return the inodes of a folder's entries, by name; none if it does not exist. Hidden files are left out.

    Raises:
        StoreError: if it is a link, which could lead out of the run folder, or not a folder.
    """
    try:
        with os.scandir(folder) as scan:
            found = {entry.name: entry.inode() for entry in scan if not entry.name.startswith(".")}
    except FileNotFoundError:
        if not os.path.islink(folder):
            return {}
        found = {}
    except OSError as error:
        raise StoreError(f"{folder}: cannot be read ({error.strerror}); it should be a folder") from error
    refuse_link(folder)
    return found


def listing(folder: Path | str, stamp: Callable[[str], object]) -> object:
    """Return a value that changes whenever a folder in the store does: its inode, and the stamp of each entry.

    Never raises: a folder that cannot be listed has a different value from one that can. A thousand bank folders take about
    ten milliseconds.
    """
    try:
        inode = os.lstat(folder).st_ino
        with os.scandir(folder) as scan:
            return inode, {entry.name: stamp(entry.path) for entry in scan if not entry.name.startswith(".")}
    except OSError as error:
        return error.errno


def refuse_link(folder: Path | str) -> None:
    """Raise `StoreError` if a folder or file of a run is a link; the run folder itself may be one."""
    if os.path.islink(folder):
        raise StoreError(f"{folder}: it is a link, which could lead anywhere. Replace it with what it links to.")


def refuse_links_inside(run: Path, path: Path) -> None:
    """Raise `StoreError` if a path inside a run folder goes through a link, which could lead out of it.

    Args:
        run: the run folder, which may be a link itself.
        path: any path; links outside the run folder are allowed.
    """
    root, target = Path(os.path.abspath(run)), Path(os.path.abspath(path))
    for below in (target, *target.parents):
        if below != root and below.is_relative_to(root):
            refuse_link(below)


def read_file(path: Path, max_bytes: int | None = None) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        FileNotFoundError: if there is none.
        StoreError: if it is not a regular file, is larger than ``max_bytes`` bytes, or cannot be read.
    """
    with _opened(path) as handle:
        size = os.fstat(handle.fileno()).st_size
        if max_bytes is not None and size > max_bytes:
            raise StoreError(
                f"{path}: it has {size} bytes, more than such a file can have (at most {max_bytes}); it is damaged, or is "
                "not what its name says"
            )
        try:
            # Do not read beyond the size that was checked, even if the file has grown since.
            return handle.read(size)
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror}); the disk may be damaged") from error


def _opened(path: Path) -> BinaryIO:
    try:
        # A link could lead out of the run folder, and opening a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise
    except OSError as error:
        if isinstance(error, PermissionError):
            raise StoreError(
                f"{path}: cannot be read ({error.strerror}). Give this user permission to read it."
            ) from error
        why = "it is a link, and a store contains only files" if os.path.islink(path) else str(error.strerror)
        raise StoreError(f"{path}: cannot be read ({why}). Put the file itself there.") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StoreError(f"{path}: this is not a file. A store contains only files: restore it from a copy.")
    return os.fdopen(descriptor, "rb")


def read_lines(path: Path, start: int = 0, max_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[bytes, bool]]:
    """Yield the lines of a regular file without newlines, each with whether it ended in one; only the last may not.

    Args:
        path: the file.
        start: number of bytes to skip: the offset of a line.
        max_bytes: maximum size of a line.

    Raises:
        FileNotFoundError: if there is none.
        StoreError: if it is not a regular file, has a line that is too long, or cannot be read.
    """
    with _opened(path) as handle:
        number = 0
        try:
            handle.seek(start)
            while line := handle.readline(max_bytes + 1):
                number += 1
                if len(line) > max_bytes:
                    place = f"{path}:{number}" if start == 0 else f"{path}: line {number} after byte {start}"
                    raise StoreError(
                        f"{place}: the line has more than {max_bytes} bytes, which no store writes; the file is damaged"
                    )
                yield line.removesuffix(b"\n"), line.endswith(b"\n")
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror}); the disk may be damaged") from error


def as_written(content: bytes, path: Path) -> dict[str, Any]:
    """Parse the bytes of a JSON file, or raise `StoreError` if they are not exactly those that a store writes."""
    value = parse_json(content, str(path))
    try:
        expected = json_bytes(value)
    except RecursionError:
        raise StoreError(f"{path}: nested deeper than any file of a store; the file is damaged") from None
    if content != expected:
        pairs = zip(content, expected, strict=False)
        offset = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(content), len(expected)))
        raise StoreError(
            f"{path}: byte {offset} is not the one that was written; the file was damaged or edited since. Restore it from a "
            "copy."
        )
    return value


def parse_json(content: bytes, where: str) -> dict[str, Any]:
    """Parse bytes as a JSON object, or raise `StoreError` naming the position of the error."""
    try:
        value = json.loads(content)
        if b"\\ud" in content.lower():
            # Raises for a lone surrogate, which could not be printed or written anywhere.
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise StoreError(f"{where}: not JSON as a store writes it (nested too deeply); the file is damaged") from None
    except ValueError as error:
        raise StoreError(f"{where}: not JSON ({error}); the file is damaged") from error
    if not isinstance(value, dict):
        raise StoreError(f"{where}: expected a JSON object, found {type(value).__name__}; the file is damaged")
    return value


def stamp_of(path: Path | str) -> Stamp:
    """Return a value that distinguishes a file or folder from another at the same path; zeros if there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return (0, 0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size, status.st_ctime_ns)
