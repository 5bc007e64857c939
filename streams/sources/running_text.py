"""Detect running text in columns: several words in most rows, as opposed to codes, dates, addresses and label names."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

_LOOKED_AT = 1_000
"""Maximum number of values inspected per column."""
_IDEOGRAPHS = "\u2e80"
"""From this character on, most scripts are written without spaces, and one character is roughly a word."""
_FEWEST = 2.0
"""Minimum average number of words per value."""


def num_words(text: str) -> int:
    """Return the approximate number of words in a text; a text without letters has none.

    Example:
        >>> num_words("a short text"), num_words("2024-01-31 12:00"), num_words("https://a.org/b")
        (3, 0, 1)
    """
    if not any(map(str.isalpha, text)):
        return 0
    return max(len(text.split()), sum(character >= _IDEOGRAPHS for character in text))


def is_prose(values: Sequence[Any]) -> bool:
    """Return whether the non-missing values are texts of at least two words on average."""
    known = list(islice((value for value in values if value is not None and value != ""), _LOOKED_AT))
    if not known or not all(isinstance(value, str) for value in known):
        return False
    # Lists that a CSV file encodes as JSON are not texts.
    if all(value.startswith("[") for value in known):
        return False
    return sum(map(num_words, known)) / len(known) >= _FEWEST
