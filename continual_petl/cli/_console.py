"""Shared by the commands: consoles, progress bars, JSON on standard output."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from continual_petl.errors import printable
from continual_petl.report.console import SafeConsole, can_draw


def out() -> Console:
    """Return the console for results: standard output, 140 columns wide if it is not a terminal."""
    return SafeConsole(width=None if sys.stdout.isatty() else 140, highlight=False)


def say(*lines: str) -> None:
    """Print each line as it is: without markup or control characters, and wrapped only by the terminal."""
    for line in lines:
        out().print(printable(line), markup=False, soft_wrap=True)


def remark(line: str) -> None:
    """Print one line on standard error, which is not part of the result."""
    print(printable(f"continual-petl: {line}"), file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """Print one JSON document; NaN becomes null."""
    print(json.dumps(plain(value), indent=2, sort_keys=True, allow_nan=False))


def plain(value: Any) -> Any:
    """Return a value that JSON can hold: NaN and infinities become null."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show a temporary progress bar on standard error, if that is a terminal."""
    console = SafeConsole(stderr=True)
    if not can_draw(console):
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # No refresh thread: a forked data loader worker could inherit the bar's lock while the thread holds it.
    bar = Progress(*columns, console=console, transient=True, auto_refresh=False, redirect_stdout=sys.stdout.isatty())
    with bar:
        number = bar.add_task(printable(what), total=None)

        def advance(done: int, total: int) -> None:
            bar.update(number, completed=done, total=total)
            bar.refresh()

        bar.refresh()
        yield advance
