"""Limits on the size of a stream file and of its strings and numbers, since files may be untrusted.

Reading and writing use the same limits, so any file that was written can be read.
"""

from __future__ import annotations

import sys

MAX_BYTES = 16 * 2**20
"""Maximum number of bytes in a stream file, and of characters after alias expansion; rows belong in data files."""
MAX_DEPTH = 40
MAX_ENTRIES = 200_000
MAX_TASKS = 10_000
"""Maximum number of tasks, counted while the file is read: this many mappings already take seconds to read and check."""
MAX_PROBLEMS = 200
"""Maximum number of reported mistakes; a file that is not a stream at all may have one per line."""
_DIGITS = 320


def whole_number(text: str, base: int) -> int:
    """Parse ``text`` as a whole number.

    Raises:
        ValueError: if it is not a number, or larger than any float; no setting needs such numbers.
    """
    if len(text) > _DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    number = int(text, base)
    check_number(number)
    return number


def check_number(number: int) -> None:
    """Raise `ValueError` if a whole number is beyond the largest float."""
    if abs(number) > sys.float_info.max:
        raise ValueError("a number beyond the largest float")


def shorten(text: str, width: int = 4000) -> str:
    """Return ``text`` without its middle if it is longer than ``width``, to keep error messages short."""
    return text if len(text) <= width else f"{text[: width * 3 // 4]} ... {text[-width // 4 :]}"
