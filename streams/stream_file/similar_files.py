"""Find files and folders with names similar to a missing one, for a hint in a message."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from continual_petl.errors import LONGEST_TYPO

_LOOKED_AT = 1_000
"""Maximum number of folder entries to inspect."""


def did_you_mean_path(wanted: str | Path, places: Iterable[Path], fits: Callable[[Path], bool]) -> str:
    """Return a hint with the path whose file name is most similar to that of a missing path, or an empty string.

    Args:
        wanted: the missing path.
        places: folders to search, in this order.
        fits: returns whether a path is usable.
    """
    paths: dict[str, Path] = {}
    for place in dict.fromkeys(places):
        with suppress(OSError, ValueError):  # the folder is missing or unreadable, or its name is invalid
            for each in islice(place.iterdir(), _LOOKED_AT):
                paths.setdefault(each.name, each)
    for name in difflib.get_close_matches(Path(wanted).name[:LONGEST_TYPO], paths, n=5):
        with suppress(OSError):
            if fits(paths[name]):
                return f" (did you mean {str(paths[name])!r}?)"
    return ""
