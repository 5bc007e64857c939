"""What templates are filled with: cards, figures and tables as plain values."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

ROWS_OF_A_PAGE = 50


@dataclass(frozen=True, kw_only=True)
class Card:
    """One number."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One figure."""

    name: str
    """By which the page finds what is drawn."""
    caption: str
    words: str
    """What the figure says, for those who do not see it."""
    figure: Any
    """Of plotly."""

    @property
    def height(self) -> int:
        """Pixels that are kept free for it."""
        return int(self.figure.layout.height or 380)

    @property
    def data(self) -> str:
        """Return the figure as JSON that can stand inside a script."""
        return inside_script(json.loads(self.figure.to_json()))


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a table."""

    text: str
    sort: float | str | None = None
    """What it is sorted by; None: by its text."""
    kind: str = ""
    """number, digest, good, bad or warn."""
    opens: int | None = None
    """Number of the task whose details it opens."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    page: int = ROWS_OF_A_PAGE


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page under a title of its own."""

    id: str
    title: str
    template: str
    lines: Sequence[str] = ()
    figures: Sequence[Shown] = ()
    tables: Sequence[Table] = ()
    more: dict[str, Any] = field(default_factory=dict)
    """What its own template wants beside."""


def inside_script(value: Any) -> str:
    """Return JSON in which no text can end the script that it stands in."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def number(value: float | None) -> str:
    """Return a score as it is written everywhere: zero is another claim than zero to four places."""
    if value is None or math.isnan(value):
        return "not known"
    if value == 0:
        return "0"
    return f"{value:.4f}" if abs(value) >= 0.00005 else f"{value:.1e}"


def megabytes(num_bytes: int) -> str:
    """Return bytes as people read them."""
    value, units = float(num_bytes), ("bytes", "kB", "MB", "GB", "TB")
    for unit in units[:-1]:
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} {units[-1]}"
