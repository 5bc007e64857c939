"""Atomic writes: a process killed at any moment leaves the old state or the new one, never a mixture.

A write that fails (full disk, failed fsync) also leaves the old state, whichever step fails: a replaced file gets its old
content back, a new folder is removed, appended lines are cut off. A failed fsync of the folder also counts as a
failed write, since the rename is then not durable.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from continual_petl.errors import StoreError

_LOOK = 2**13
"""Block size in bytes when searching for the end of the last line."""


def write_file(path: Path, content: bytes) -> None:
    """Replace a file's content: write to a temporary file next to it, flush, and rename.

    Raises:
        StoreError: if any step fails; the file is then unchanged.
    """
    with replacing(path) as beside:
        append_bytes(beside, content)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON value to a file, indented and with sorted keys so that people can compare versions.

    Raises:
        ValueError: for NaN and infinities, which JSON cannot represent.
    """
    json.dumps(value, allow_nan=False)
    write_file(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Return the bytes of a JSON file, indented and with sorted keys: equal values give equal bytes."""
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Replace a file: the block writes and flushes the new content at the path that it gets, which is then renamed.

    Raises:
        StoreError: if any step fails; the file is then unchanged.
    """
    beside = _beside(path)
    with explain_refusals(path):
        beside.unlink(missing_ok=True)
        try:
            yield beside
            with _content_of(path) as old:
                os.replace(beside, path)
                try:
                    sync_folder(path.parent)
                except OSError:
                    with _undoing(path):
                        _put_back(path, beside, old())
                    raise
        except BaseException:
            with suppress(OSError):
                beside.unlink(missing_ok=True)
            raise


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill; it appears at ``path``, complete and flushed, only if the block succeeds.

    Args:
        path: the path at which the folder appears.

    Raises:
        StoreError: if the folder already exists, or if any step fails; nothing is then left behind.
    """
    if path.exists():
        raise StoreError(f"{path} already exists; a learned task is never overwritten")
    beside, new = _beside(path), [parent for parent in path.parents if not parent.exists()]
    with explain_refusals(path), _removing(new):
        # Leftovers of other processes that were killed; the caller holds the lock, so none of them is alive.
        for stale in path.parent.glob(f".{glob.escape(path.name)}.*.new"):
            shutil.rmtree(stale)
        make_folder(path.parent)
        os.mkdir(beside)
    with _removing(new):
        try:
            with _explain_below(beside, path):
                yield beside
            with explain_refusals(path):
                for file in beside.iterdir():
                    _sync(file)
                sync_folder(beside)
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
    """Remove the unfinished files of killed writers from a folder. The lock must be held, so that no writer is alive.

    Args:
        folder: the folder that was written to.
        links: whether symbolic links, which no writer creates, are removed too; otherwise they raise `OSError`.
    """
    for stale in folder.glob(".*.new"):
        if (stale.is_symlink() and links) or (stale.is_file() and not stale.is_symlink()):
            stale.unlink(missing_ok=True)
        else:
            shutil.rmtree(stale)


def remove_folder(path: Path) -> None:
    """Remove a folder, if it exists, in one step: it is renamed first, so a killed process leaves nothing under its name.

    Of a link, only the link is removed.

    Raises:
        StoreError: if it cannot be renamed; files that cannot be deleted afterwards are left to `remove_unfinished`.
    """
    if path.is_symlink():
        with explain_refusals(path):
            path.unlink()
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}.old.new")
    with explain_refusals(path):
        if aside.exists():
            shutil.rmtree(aside)
        with suppress(FileNotFoundError):
            os.rename(path, aside)
    shutil.rmtree(aside, ignore_errors=True)


def make_folder(path: Path) -> None:
    """Create a folder and its parents if needed, and flush them: a file is only durable if its folder is.

    Raises:
        StoreError: if it cannot be created.
    """
    with explain_refusals(path):
        if not path.is_dir():
            make_folder(path.parent)
            created = [path]
            try:
                os.mkdir(path)
            except FileExistsError:
                if not path.is_dir():
                    raise  # if it is a folder, another process has just created it
                created = []
            with _removing(created):
                sync_folder(path.parent)


def append_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append JSON lines; see `append_whole`."""
    append_whole(path, b"".join(map(line_bytes, rows)))


def append_whole(path: Path, content: bytes) -> None:
    """Append whole lines and flush them to disk. A torn last line, left by a killed process, is cut off first.

    Raises:
        StoreError: if any step fails; the file is then unchanged.
    """
    with explain_refusals(path):
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
    """Append to a file, creating it if needed, and flush it; an OSError may leave part of the content."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        _close(descriptor)


@contextmanager
def explain_refusals(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a `StoreError`; the block itself has to undo its changes."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{path}: could not be written: {error.strerror or error}. The previous content is unchanged, and so is "
            "everything else that was learned. Free up space on that disk, or fix the reported problem, and run the same "
            "command again: it resumes from there."
        ) from error


@contextmanager
def _explain_below(folder: Path, path: Path) -> Iterator[None]:
    """Turn an error of writing into ``folder``, which becomes ``path``, into a `StoreError`."""
    try:
        yield
    except OSError as error:
        if error.filename is None or not Path(os.fsdecode(error.filename)).is_relative_to(folder):
            raise
        with explain_refusals(path):
            raise


@contextmanager
def _removing(folders: Sequence[Path]) -> Iterator[None]:
    """Remove folders that were created, the innermost first, if the block fails."""
    try:
        yield
    except BaseException:
        for folder in folders:
            with suppress(OSError):
                folder.rmdir()
        raise


def line_bytes(row: Mapping[str, Any]) -> bytes:
    """Return the bytes of a JSON line, including its newline."""
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
    # Any failure that matters was reported when the file was flushed.
    with suppress(OSError):
        os.close(descriptor)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.new")


@contextmanager
def _content_of(path: Path) -> Iterator[Callable[[], bytes | None]]:
    """Yield a function that returns a file's old content even after it was replaced; None if there was no file."""
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
    """Raise `StoreError` if undoing a failed step fails too; the file is complete either way."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{path}: was written, but could neither be flushed to disk nor undone ({error.strerror or error}). It is "
            "complete now, but may be lost in the next power cut. Check the disk, then run `continual-petl verify`."
        ) from error


def _end_of_last_line(path: Path) -> int:
    """Return where the last complete line ends, searching from the end of the file."""
    with path.open("rb") as handle:
        end = handle.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _LOOK)
            handle.seek(start)
            newline = handle.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0
