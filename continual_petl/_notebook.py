"""Displays this package's objects in notebooks and debuggers: always briefly, and without ever raising."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence

MAX_NAMES = 8
MAX_ROWS = 20


def names(read: Callable[[], Sequence[str]]) -> str:
    """Return the names that ``read`` returns, shortened if there are many, or the reason they cannot be read."""
    try:
        found = read()
    except Exception as error:  # displaying an object must not raise
        return f"cannot be read ({type(error).__name__}: {error})"
    if len(found) <= MAX_NAMES:
        return ", ".join(found) or "none"
    return f"{', '.join(found[: MAX_NAMES - 1])}, ..., {found[-1]} ({len(found):,} in all)"


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]], count: int) -> str:
    """Return a table as HTML, with all text escaped.

    Args:
        caption: title of the table.
        heads: titles of the columns.
        rows: rows of the table; at most `MAX_ROWS` are shown.
        count: total number of rows.
    """
    shown = [list(row) for row, _ in zip(rows, range(MAX_ROWS), strict=False)]
    lines = ["".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) for row in shown]
    more = f", the first {len(shown)} of {count:,}" if len(shown) < count else ""
    head = "".join(f"<th>{html.escape(each)}</th>" for each in heads)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    caption = html.escape(caption + more)
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
