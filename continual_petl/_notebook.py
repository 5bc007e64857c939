"""Displays this package's objects in notebooks and debuggers: always briefly, and without ever raising."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

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


def written(value: object) -> str:
    """Format a cell: at most four decimals, thousands separators, and words for what is unknown.

    Example:
        >>> written(0.9312000274658203), written(0.0), written(1234567), written(math.nan), written(3.2e-7), written("text")
        ('0.9312', '0', '1,234,567', 'not known', '3.2e-07', 'text')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "not known"
    if isinstance(value, float):
        return "0" if value == 0 else f"{value:,.4f}" if abs(value) >= 0.00005 else f"{value:.1e}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def pretty(value: object) -> str:
    """Return the ``repr`` of a dataclass with the numbers in it shortened and without defaults, for display only.

    Example:
        >>> pretty({"yes": 0.9312000274658203, "no": [0.5, "a", 3]})
        "{'yes': 0.9312, 'no': [0.5000, 'a', 3]}"
    """
    if isinstance(value, float):
        return f"{value:.4f}" if value == 0 or abs(value) >= 0.00005 else f"{value:.1e}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {pretty(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        listed = ", ".join(map(pretty, value))
        return f"[{listed}]" if isinstance(value, list) else f"({listed})"
    if is_dataclass(value) and not isinstance(value, type):
        own = ((field, getattr(value, field.name)) for field in fields(value))
        parts = ", ".join(f"{field.name}={pretty(each)}" for field, each in own if each != _default(field))
        return f"{type(value).__name__}({parts})"
    return repr(value)


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


class Pretty:
    """Makes IPython display a dataclass with `pretty`; ``repr`` and the attributes keep all digits."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(pretty(self))


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]], count: int) -> str:
    """Return a table as HTML, with all text escaped.

    Args:
        caption: title of the table.
        heads: titles of the columns.
        rows: rows of the table; at most `MAX_ROWS` are shown.
        count: total number of rows.
    """
    shown = [list(row) for row, _ in zip(rows, range(MAX_ROWS), strict=False)]
    lines = ["".join(f"<td>{html.escape(written(cell))}</td>" for cell in row) for row in shown]
    more = f", the first {len(shown)} of {count:,}" if len(shown) < count else ""
    head = "".join(f"<th>{html.escape(each)}</th>" for each in heads)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    caption = html.escape(caption + more)
    return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
