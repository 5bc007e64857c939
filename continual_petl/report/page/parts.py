"""Plain values for the templates: cards, figures, tables, sections."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from continual_petl.report.figures.registry import Facts, Registered
from continual_petl.report.figures.style import Drawing
from continual_petl.report.formatting import megabytes, number

ROWS_OF_A_PAGE = 50
MAX_ROWS = 1_000
"""Maximum number of table rows in the document; for a longer table, the page creates the visible rows on demand."""


@dataclass(frozen=True)
class Card:
    """One number with its name and a note."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One figure."""

    name: str
    """Id under which the page finds the figure's data."""
    caption: str
    words: str
    """Description below the caption, and text alternative for screen readers."""
    figure: Drawing

    @property
    def height(self) -> int:
        """Pixels reserved for it."""
        return int(self.figure["layout"]["height"])

    @property
    def data(self) -> str:
        """Return the figure as JSON that is safe inside a script."""
        return inside_script(self.figure)


def shown(figures: Iterable[Registered[Facts]], facts: Facts) -> list[Shown]:
    """Return the figures that can be drawn."""
    return [
        Shown(name=registered.name, caption=registered.caption, words=registered.words(facts), figure=figure)
        for registered in figures
        if (figure := registered.draw(facts)) is not None
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class TableCell:
    """One cell of a table."""

    text: str
    sort: float | str | None = None
    """Sort key; None sorts by the text."""
    kind: str = ""
    """number, digest, text, good, bad or warn."""
    opens: int | None = None
    """Number of the task whose details it opens."""


Value: TypeAlias = TableCell | str | float
"""A value of a table: a cell, or a text, a count (int) or a score (float), which is formatted as such."""


def numeric(value: float | None, text: str) -> TableCell:
    """Return a cell that is sorted by its number, if that is known."""
    return TableCell(text=text, sort=None if value is None or math.isnan(value) else value, kind="number")


def on_disk(num_bytes: int) -> TableCell:
    """Return the cell of a number of bytes."""
    return numeric(num_bytes, megabytes(num_bytes))


def opening(index: int, name: str) -> TableCell:
    """Return the cell of a task's name, which opens its details; tasks are sorted in the order they were learned."""
    return TableCell(text=name, sort=index, opens=index)


def row(*values: Value) -> list[TableCell]:
    """Return the cells of these values."""
    return [value if isinstance(value, TableCell) else _cell(value) for value in values]


def _cell(value: str | float) -> TableCell:
    if isinstance(value, str):
        return TableCell(text=value)
    return numeric(value, f"{value:,}" if isinstance(value, int) else number(value))


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[TableCell]]
    page: int = ROWS_OF_A_PAGE
    notes: Sequence[str] = ()
    """Explanations of the marks in its cells."""

    @property
    def is_long(self) -> bool:
        """Whether the document shows only the first rows, and contains all rows as data."""
        return len(self.rows) > MAX_ROWS

    @property
    def drawn(self) -> Sequence[Sequence[TableCell]]:
        """The rows in the document."""
        return self.rows[: self.page] if self.is_long else self.rows

    @property
    def kinds(self) -> list[str]:
        """The kind of each column, taken from its first cell."""
        return [cell.kind for cell in self.rows[0]] if self.rows else []

    @property
    def data(self) -> str:
        """Return all rows as JSON that is safe inside a script.

        A cell is its text, or a list of text, sort key, its kind if that differs from its column's, and
        the number of the task that it opens.
        """
        kinds = self.kinds
        rows = [[_plain(cell, kind) for cell, kind in zip(row, kinds, strict=True)] for row in self.rows]
        return inside_script({"kinds": kinds, "rows": rows})


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page with its own title."""

    id: str
    title: str
    template: str = "figures.html.j2"
    lines: Sequence[str] = ()
    figures: Sequence[Shown] = ()
    tables: Sequence[Table] = ()
    more: dict[str, Any] = field(default_factory=dict)
    """Extra values for its template."""


def _plain(cell: TableCell, kind: str) -> str | list[Any]:
    parts = [cell.text, cell.sort, None if cell.kind == kind else cell.kind, cell.opens]
    while len(parts) > 1 and parts[-1] is None:
        parts.pop()
    return cell.text if len(parts) == 1 else parts


def inside_script(value: Any) -> str:
    """Return JSON in which no text can end the enclosing script."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
