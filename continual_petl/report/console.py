"""Consoles for people, whatever reads them: a terminal, a narrow one, a file, a pipe whose reader went away."""

from __future__ import annotations

import sys

from rich.console import Console
from typing_extensions import override


class Told(Console):
    """rich's console, but for a reader that goes away: that is a `BrokenPipeError`, and not the end of the program."""

    @override
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def can_draw(console: Console) -> bool:
    """Return whether lines can be drawn over again: on a terminal that knows how, whatever variables say of colours.

    ``FORCE_COLOR`` makes rich take a log file for a terminal; colours may be wanted there, moving lines are not.
    """
    isatty = getattr(console.file, "isatty", None)
    return console.is_terminal and not console.is_dumb_terminal and isatty is not None and bool(isatty())


def is_watched() -> bool:
    """Return whether a person sees standard error while it is written: a terminal, or the cell of a notebook."""
    return sys.stderr is not None and (sys.stderr.isatty() or Told(stderr=True).is_jupyter)
