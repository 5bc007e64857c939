"""What a notebook or a debugger shows of our objects: short, whatever they hold, and never an error."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence

MOST_NAMES = 8
MOST_ROWS = 20


def names(read: Callable[[], Sequence[str]]) -> str:
    """Return some of the names that a function reads and how many there are, or why they cannot be read."""
    try:
        found = read()
    except Exception as error:  # whoever looks at an object has not asked for anything
        return f"cannot be read ({type(error).__name__}: {error})"
    if len(found) <= MOST_NAMES:
        return ", ".join(found) or "none"
    return f"{', '.join(found[: MOST_NAMES - 1])}, ..., {found[-1]} ({len(found):,} in all)"


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]], count: int) -> str:
    """Return a table as HTML, every text escaped.

    Args:
        caption: of the table.
        heads: of the columns.
        rows: those that are shown; no more than `MOST_ROWS` are taken.
        count: how many there are.
    """
    shown = [list(row) for row, _ in zip(rows, range(MOST_ROWS), strict=False)]
    lines = ["".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) for row in shown]
    more = f", the first {len(shown)} of {count:,}" if len(shown) < count else ""
    head = "".join(f"<th>{html.escape(each)}</th>" for each in heads)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    caption = html.escape(caption + more)
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
