"""Files and folders that are called like one that is not there, for a hint in a message."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from continual_petl.errors import LONGEST_TYPO

_LOOKED_AT = 1_000
"""Entries of a folder."""


def did_you_mean_path(wanted: str | Path, places: Iterable[Path], fits: Callable[[Path], bool]) -> str:
    """Return a hint: the path whose last name is most like that of a path that is not there, or nothing.

    Args:
        wanted: what was asked for.
        places: folders that are looked into, in this order.
        fits: whether what was found is of use.
    """
    found: dict[str, Path] = {}
    for place in dict.fromkeys(places):
        with suppress(OSError, ValueError):  # there is no such place, it may not be read, or it can have no such name
            for each in islice(place.iterdir(), _LOOKED_AT):
                found.setdefault(each.name, each)
    for name in difflib.get_close_matches(Path(wanted).name[:LONGEST_TYPO], found, n=5):
        with suppress(OSError):
            if fits(found[name]):
                return f" (did you mean {str(found[name])!r}?)"
    return ""
