"""Writing so that a kill at any instant leaves the old state or the new one, never a mixture.

A write that the system refuses (a full disk, a failing fsync) leaves the old state too, whichever of its steps fails: a
file that was replaced gets its old content back, a folder that appeared is taken away, lines that were appended are cut
off. A failing fsync of the folder counts as well: what it should have made last was not made to last.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from continual_petl.errors import StoreError

_LOOK = 2**13
"""Bytes that are looked at, at a time, for the end of the last line."""


def write_file(path: Path, content: bytes) -> None:
    """Replace a file's content: write beside it, flush to disk, rename over it.

    Raises:
        StoreError: if the system refuses any step; the file is then as it was.
    """
    replace_file(path, lambda beside: append_bytes(beside, content))


def write_json(path: Path, value: Any) -> None:
    """Replace a file by a JSON value, indented and with sorted keys, so that versions can be compared by eye.

    Raises:
        ValueError: for NaN and infinities, which JSON has no word for.
    """
    json.dumps(value, allow_nan=False)
    write_file(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Return the bytes of a JSON file, indented and with sorted keys: the same value, the same bytes."""
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def replace_file(path: Path, fill: Callable[[Path], None]) -> None:
    """Replace a file by what ``fill`` writes, and flushes, to the path that it is given.

    Raises:
        StoreError: if the system refuses any step; the file is then as it was.
    """
    beside = _beside(path)
    with refusals_told(path):
        beside.unlink(missing_ok=True)
        try:
            fill(beside)
            with _content_of(path) as old:
                os.replace(beside, path)
                try:
                    sync_folder(path.parent)
                except OSError:
                    with _undoing(path):
                        _put_back(path, beside, old())
                    raise
        finally:
            beside.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path, *, room: AbstractContextManager[None] | None = None) -> Iterator[Path]:
    """Give a folder to fill; it appears under its own name, complete and flushed, only when the block ends well.

    Args:
        path: the folder.
        room: entered right before the folder appears: it moves what lies there out of the way, or back.

    Raises:
        StoreError: if the folder already exists and nothing makes room for the new one, or if the system refuses any step;
            nothing is left behind then.
    """
    if room is None and path.exists():
        raise StoreError(f"{path} already exists; a learned task is never overwritten")
    beside = _beside(path)
    with refusals_told(path):
        # What other processes left behind when they were killed; the caller holds the lock, so none of them is alive.
        for stale in path.parent.glob(f".{glob.escape(path.name)}.*.new"):
            shutil.rmtree(stale)
        make_folder(path.parent)
        os.mkdir(beside)
    try:
        yield beside
        with refusals_told(path):
            for file in beside.iterdir():
                _sync(file)
            sync_folder(beside)
            with room or nullcontext():
                os.rename(beside, path)
                try:
                    sync_folder(path.parent)
                except OSError:
                    with _undoing(path):
                        os.rename(path, beside)
                    raise
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def remove_unfinished(folder: Path, *, links: bool = True) -> None:
    """Remove what writers that were killed left half-written in a folder; the lock is held, so none of them is alive.

    Args:
        folder: where they wrote.
        links: whether a link, which no writer leaves, is removed too; without, it is an `OSError`.
    """
    for stale in folder.glob(".*.new"):
        if (stale.is_symlink() and links) or (stale.is_file() and not stale.is_symlink()):
            stale.unlink(missing_ok=True)
        else:
            shutil.rmtree(stale)


def remove_folder(path: Path) -> None:
    """Remove a folder, if there is one, in one step: of what a kill or an error leaves, nothing has its name.

    Raises:
        StoreError: if the system refuses that step; what it refuses later goes with the next `remove_unfinished`.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.old.new")
    with refusals_told(path):
        if aside.exists():
            shutil.rmtree(aside)
        with suppress(FileNotFoundError):
            os.rename(path, aside)
    shutil.rmtree(aside, ignore_errors=True)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, unless it is there; flushed, so that what comes into it survives too.

    Raises:
        StoreError: if the system refuses.
    """
    with refusals_told(path):
        if not path.is_dir():
            make_folder(path.parent)
            try:
                os.mkdir(path)
            except FileExistsError:
                if not path.is_dir():
                    raise  # else another process was faster
            sync_folder(path.parent)


def append_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append JSON lines and flush them to disk. A torn last line, left by a kill, is cut off first.

    Raises:
        StoreError: if the system refuses any step; the file then ends where it ended.
    """
    content = b"".join(map(line_bytes, rows))
    with refusals_told(path):
        is_new = not path.exists()
        end = 0 if is_new else _end_of_last_line(path)
        try:
            if not is_new and path.stat().st_size != end:
                os.truncate(path, end)
            append_bytes(path, content)
            if is_new:
                sync_folder(path.parent)
        except OSError:
            with _undoing(path):
                if is_new:
                    path.unlink(missing_ok=True)
                else:
                    os.truncate(path, end)
            raise


def append_bytes(path: Path, content: bytes) -> None:
    """Write at the end of a file, which is made if there is none, and flush it; an OSError may leave part of it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        _close(descriptor)


@contextmanager
def refusals_told(path: Path) -> Iterator[None]:
    """Turn what the system refuses inside the block, which undoes its own steps, into a `StoreError`."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{path}: could not be written: {error.strerror or error}. What lay there before is as it was, and so is "
            "everything else that was learned. Make room on that disk, or see to what it reports, and run the same command "
            "again: it goes on from there."
        ) from error


def line_bytes(row: Mapping[str, Any]) -> bytes:
    """Return the bytes of a JSON line, its end included."""
    return json.dumps(row, sort_keys=True, allow_nan=False).encode() + b"\n"


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that a rename survives a power cut."""
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        _close(descriptor)


def _close(descriptor: int) -> None:
    # Whatever mattered was flushed before, or has failed already.
    with suppress(OSError):
        os.close(descriptor)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.new")


@contextmanager
def _content_of(path: Path) -> Iterator[Callable[[], bytes | None]]:
    """Give a function that still reads a file's content, None if there was none, after another was renamed over it."""
    if not path.exists():
        yield lambda: None
        return
    with path.open("rb") as handle:
        yield handle.read


def _put_back(path: Path, beside: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink()
        return
    append_bytes(beside, content)
    os.replace(beside, path)


@contextmanager
def _undoing(path: Path) -> Iterator[None]:
    """Tell of a step that can neither be completed nor be taken back; both states are whole."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{path}: was written, but could not be flushed to the disk, nor taken back ({error.strerror or error}). It is "
            "whole now, but may be lost with the next power cut. See to the disk, then run `continual-petl verify`."
        ) from error


def _end_of_last_line(path: Path) -> int:
    """Return where the last whole line ends, looking from the end of the file."""
    with path.open("rb") as handle:
        end = handle.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _LOOK)
            handle.seek(start)
            place = handle.read(end - start).rfind(b"\n")
            if place >= 0:
                return start + place + 1
            end = start
    return 0
