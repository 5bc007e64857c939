"""A published table: a setting, and numbers with their sources and caveats."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """One published number."""

    method: str
    value: str
    source: str
    flag: str = ""
    """A caveat to consider before quoting it."""


@dataclass(frozen=True)
class Table:
    """The published numbers for one setting."""

    setting: str
    """Backbone, stream, rows."""
    rows: tuple[Published, ...]


def arxiv(number: str, part: str = "") -> str:
    """Return a link to a paper, and the part of it that has the number.

    Example:
        >>> arxiv("1902.00751v2", "Table 1")
        '[arXiv 1902.00751v2](https://arxiv.org/abs/1902.00751v2), Table 1'
    """
    link = f"[arXiv {number}](https://arxiv.org/abs/{number})"
    return f"{link}, {part}" if part else link
