"""Reading files that may come from strangers, or from a damaged disk: regular files only, bounded, byte for byte as written.

A JSON file of a store is accepted only if its bytes are those that `atomic.write_json` makes of its content. What a parser
would forgive (a second key of the same name, ``1E-05`` for ``1e-05``) is a change like any other.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from continual_petl.errors import StoreError
from continual_petl.store.atomic import json_bytes

Signature = tuple[int, int, int, int]
"""Inode, time of modification, size and time of change, which nobody can set; times in nanoseconds."""

MAX_JSON_BYTES = 64 * 2**20
"""Of one JSON file: more tensors and labels than any bank has."""
MAX_LINE_BYTES = 16 * 2**20
"""Of one line: a row of more tasks than any stream has."""
_TAIL = 2**13
"""Bytes that are read at the end of a file of lines at first."""


def entries(folder: Path) -> list[Path]:
    """Return what lies in a folder of the store, sorted by name, hidden things left out; nothing if there is no folder.

    Raises:
        StoreError: if it is a link, which could lead out of the run folder, or no folder.
    """
    try:
        with os.scandir(folder) as found:
            names = sorted(entry.name for entry in found if not entry.name.startswith("."))
    except FileNotFoundError:
        if not os.path.islink(folder):
            return []
        names = []
    except OSError as error:
        raise StoreError(f"{folder}: cannot be read ({error.strerror}); a folder belongs there") from error
    refuse_link(folder)
    return [folder / name for name in names]


def listing(folder: Path | str, look: Callable[[str], object]) -> object:
    """Return what tells a folder of the store from itself after a change: its inode, and a look at each of its `entries`.

    Nothing is raised; a folder that cannot be listed differs from one that can. A thousand folders of banks take about ten
    milliseconds.
    """
    try:
        inode = os.lstat(folder).st_ino
        with os.scandir(folder) as found:
            return inode, {entry.name: look(entry.path) for entry in found if not entry.name.startswith(".")}
    except OSError as error:
        return error.errno


def refuse_link(folder: Path) -> None:
    """Raise `StoreError` for a folder or file of a run that is a link; the run folder itself may be one."""
    if os.path.islink(folder):
        raise StoreError(f"{folder}: it is a link, which could lead anywhere. Put what it leads to there itself.")


def refuse_links_inside(run: Path, path: Path) -> None:
    """Raise `StoreError` if what is written to a path would leave the run folder that the path is in, through a link.

    Args:
        run: the run folder, which may be a link itself.
        path: in it or elsewhere; elsewhere, links are the user's own.
    """
    root, place = Path(os.path.abspath(run)), Path(os.path.abspath(path))
    for below in (place, *place.parents):
        if below != root and below.is_relative_to(root):
            refuse_link(below)


def read_file(path: Path, most: int | None = None) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        FileNotFoundError: if there is none.
        StoreError: if it is something else than a file, larger than ``most`` bytes, or cannot be read.
    """
    with _opened(path) as handle:
        size = os.fstat(handle.fileno()).st_size
        if most is not None and size > most:
            raise StoreError(
                f"{path}: {size} bytes are more than such a file can have (at most {most}); it is damaged or not what its "
                "name says"
            )
        try:
            # No more than was looked at, if it grows meanwhile.
            return handle.read(size)
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror}); the disk is damaged") from error


def _opened(path: Path) -> BinaryIO:
    try:
        # A link could lead out of the run folder, and to open a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise
    except OSError as error:
        if isinstance(error, PermissionError):
            raise StoreError(
                f"{path}: cannot be read ({error.strerror}). Give this user the right to read it."
            ) from error
        why = "it is a link, and a store holds files only" if os.path.islink(path) else str(error.strerror)
        raise StoreError(f"{path}: cannot be read ({why}). Put the file itself there.") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StoreError(f"{path}: this is no file. A store holds files only: restore it from a copy.")
    return os.fdopen(descriptor, "rb")


def read_lines(path: Path, most: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """Yield the lines of a regular file without their ends; what stands behind the last end comes last, empty at best.

    Raises:
        FileNotFoundError: if there is none.
        StoreError: if it is something else than a file, has a longer line, or cannot be read.
    """
    with _opened(path) as handle:
        number = 0
        while True:
            number += 1
            try:
                line = handle.readline(most + 1)
            except OSError as error:
                raise StoreError(f"{path}: cannot be read ({error.strerror}); the disk is damaged") from error
            if len(line) > most:
                raise StoreError(
                    f"{path}:{number}: more than {most} bytes are no line that a store writes; the file is damaged"
                )
            yield line.removesuffix(b"\n")
            if not line.endswith(b"\n"):
                return


def read_json(path: Path, *, most: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Return the object that a JSON file of the store holds.

    Raises:
        FileNotFoundError: if there is none.
        StoreError: if it is damaged.
    """
    content = read_file(path, most)
    value = parse_json(content, str(path))
    try:
        expected = json_bytes(value)
    except RecursionError:
        raise StoreError(f"{path}: nested deeper than any file of a store; the file is damaged") from None
    if content != expected:
        pairs = zip(content, expected, strict=False)
        place = next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(content), len(expected)))
        raise StoreError(
            f"{path}: byte {place} is not the one that was written; the file was damaged or edited since. Restore it from a "
            "copy."
        )
    return value


def parse_json(content: bytes, where: str) -> dict[str, Any]:
    """Return the JSON object in some bytes, or raise `StoreError` saying where it is not one."""
    try:
        value = json.loads(content)
        if b"\\ud" in content.lower():
            # Half of a character could neither be printed nor written anywhere.
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise StoreError(f"{where}: not JSON as a store writes it (nested too deeply); the file is damaged") from None
    except ValueError as error:
        raise StoreError(f"{where}: not JSON ({error}); the file is damaged") from error
    if not isinstance(value, dict):
        raise StoreError(
            f"{where}: the whole file: expected a JSON object, found {type(value).__name__}; the file is damaged"
        )
    return value


def read_tail(path: Path, most: int = MAX_LINE_BYTES) -> tuple[bytes | None, bytes]:
    """Return the last whole line of a regular file without its end, None if there is none, and what stands behind it.

    Only the end of the file is read.

    Raises:
        FileNotFoundError: if there is none.
        StoreError: if it is something else than a file, its last line is longer than ``most`` bytes, or it cannot be read.
    """
    with _opened(path) as handle:
        size = start = os.fstat(handle.fileno()).st_size
        tail = b""
        try:
            while start > 0 and tail.count(b"\n") < 2:
                if len(tail) > 2 * most:
                    raise StoreError(
                        f"{path}: more than {most} bytes at its end are no line that a store writes; the file is damaged"
                    )
                before, start = start, max(0, start - max(_TAIL, len(tail)))
                handle.seek(start)
                tail = handle.read(before - start) + tail
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({error.strerror}); the disk is damaged") from error
    if len(tail) != size - start:
        raise StoreError(f"{path}: it was cut short while it was read; another program writes to it")
    *lines, behind = tail.split(b"\n")
    if max(map(len, (behind, *lines[-1:]))) > most:
        raise StoreError(
            f"{path}: more than {most} bytes at its end are no line that a store writes; the file is damaged"
        )
    return (lines[-1] if lines else None), behind


def signature_of(path: Path | str) -> Signature:
    """Return what tells a file or folder from another one that takes its place; zeros if there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return (0, 0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size, status.st_ctime_ns)
