"""Consoles for any output: terminals of any width, files, and pipes that may be closed by their reader."""

from __future__ import annotations

import sys

from rich.console import Console
from typing_extensions import override


class SafeConsole(Console):
    """rich's console, except that a closed pipe raises `BrokenPipeError` instead of ending the program."""

    @override
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def can_draw(console: Console) -> bool:
    """Return whether lines can be redrawn: only on a capable terminal, whatever the environment variables for colour say.

    ``FORCE_COLOR`` makes rich treat a log file as a terminal; colours may be wanted there, moving lines are not.
    """
    isatty = getattr(console.file, "isatty", None)
    return console.is_terminal and not console.is_dumb_terminal and isatty is not None and bool(isatty())


def is_watched() -> bool:
    """Return whether a person watches standard error: on a terminal, or in a notebook cell."""
    return sys.stderr is not None and (sys.stderr.isatty() or SafeConsole(stderr=True).is_jupyter)
