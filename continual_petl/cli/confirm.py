"""Asks before something is lost."""

from __future__ import annotations

import sys

from continual_petl.errors import InputError, printable


def confirm(what: str, *, yes: bool) -> None:
    """Ask on the terminal whether to go on; return if the user agrees.

    Args:
        what: what would happen, as a sentence without its end.
        yes: whether the user agreed beforehand, with --yes.

    Raises:
        InputError: if the user does not agree, or there is no terminal to ask on.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InputError(f"{what}; nothing was changed, since there is no terminal to ask on: add --yes")
    print(printable(f"{what}. Go on? [y/N] "), end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InputError("nothing was changed")
