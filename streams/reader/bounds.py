"""How much an untrusted file may take: unpacked size, length of a cell, memory; and what is no file at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from continual_petl.errors import InputError
from continual_petl.streams.schema.limits_spec import LimitsSpec

FREE_BYTES = 100 * 10**6
"""Files that unpack to no more than this are read at any compression ratio, since rows may be repeated many times."""


def check_regular(place: str, path: str) -> None:
    """Check that a path is not a device, pipe or socket, which can be endless, nor a link to nothing.

    Raises:
        InputError: if it is one of these.
    """
    if os.path.islink(path) and not os.path.exists(path):
        raise InputError(
            f"{place}: this is a link to {os.readlink(path)}, which is not there: restore that file, or remove the link"
        )
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise InputError(
            f"{place}: this is not a regular file but a device, pipe or socket: save the rows as a file, and give that"
        )


def check_unpacked(place: str, packed: int, size: int, limits: LimitsSpec) -> None:
    """Check the unpacked size of a file, or of the part read so far.

    Args:
        place: beginning of the message.
        packed: size of the file in bytes.
        size: unpacked size in bytes, or a lower bound.
        limits: limits of the task.

    Raises:
        InputError: if the size exceeds a limit.
    """
    if size > limits.unpacked_gb * 1e9:
        key, needed = "unpacked_gb", 2 * limits.unpacked_gb
        what = f"more than {limits.unpacked_gb:g} GB (limits.unpacked_gb)"
    elif size > FREE_BYTES and size > limits.ratio * packed:
        key, needed = "ratio", 2 * limits.ratio
        what = f"more than {limits.ratio:g} times as many (limits.ratio)"
    else:
        return
    raise InputError(f"{place}: {packed:,} bytes unpack to {what}. {limits.hint(key, needed)}")


def long_text(limits: LimitsSpec) -> str:
    """Return what is wrong with a text that is longer than a cell may be."""
    return f"has a text of more than {limits.cell_mb:g} million characters (limits.cell_mb)"


@contextmanager
def memory_reported(place: str) -> Iterator[None]:
    """Report a `MemoryError` in the block as an error about the file that is read there: a damaged file can claim any size.

    Args:
        place: beginning of the message; names the file.

    Raises:
        InputError: in place of a `MemoryError`, also of one that another library has wrapped in an error of its own.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # raised again unless memory ran out, which libraries wrap in errors of their own
        memory_error = _memory_error(error)
        if memory_error is None:
            raise
        what = " ".join(str(memory_error).split()).rstrip(".")
        raise InputError(
            f"{place}: reading it asks for more memory than there is{f' ({what})' if what else ''}. A damaged file can ask "
            "for any amount: copy, download or write it again. If it is correct, divide it into several files, or read it "
            "where there is more memory."
        ) from error


def _memory_error(error: BaseException | None) -> MemoryError | None:
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__
    return error
