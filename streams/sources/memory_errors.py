"""Files that ask for more memory than there is: large ones, and damaged ones, which can claim any size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from continual_petl.errors import InputError


@contextmanager
def memory_reported(place: str) -> Iterator[None]:
    """Report a `MemoryError` in the block as an error about the file that is read there.

    Args:
        place: beginning of the message; names the file.

    Raises:
        InputError: in place of a `MemoryError`, also of one that another library has wrapped in an error of its own.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
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
