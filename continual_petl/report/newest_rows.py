"""The newest rows of R for a terminal of any width: a column for each of the last tasks, and one for all earlier ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from continual_petl.errors import printable

MAX_ROWS = 6
_COLUMN, _SPACE = 10, 2


@dataclass(frozen=True, kw_only=True)
class NewestRow:
    """The scores after a task."""

    task: str
    number: int
    """Its 1-based position in the order tasks were learned."""
    scores: Mapping[str, float | None]
    """Scores by task; None if undefined."""


def newest_table(rows: Sequence[NewestRow], width: int) -> Table:
    """Return the newest rows as a table that fits a given width.

    Args:
        rows: the rows, oldest first; the last tasks become columns, as many as fit.
        width: width of the terminal.
    """
    fit = max(1, (width - _COLUMN - _SPACE) // (_COLUMN + _SPACE))
    shown = [row.task for row in rows][-fit:]
    others = any(set(row.scores).difference(shown) for row in rows)
    if others and fit > 1:
        shown = shown[1 - fit :]
    table = Table(box=None, padding=(0, _SPACE, 0, 0), pad_edge=False)
    table.add_column(Text("after"), no_wrap=True, overflow="ellipsis", max_width=_COLUMN)
    wide = others and fit > 1
    if wide:
        table.add_column(Text("others"), no_wrap=True, overflow="ellipsis", justify="right", max_width=_COLUMN)
    for task in shown:
        name = Text(printable(task), no_wrap=True, overflow="ellipsis")
        table.add_column(name, no_wrap=True, overflow="ellipsis", justify="right", max_width=_COLUMN)
    for row in rows:
        cells = [_score(row.scores, task) for task in shown]
        if wide:
            cells.insert(0, _others(row.scores, shown))
        table.add_row(Text(printable(row.task)), *map(Text, cells))
    return table


def _score(scores: Mapping[str, float | None], task: str) -> str:
    if task not in scores:
        return ""
    value = scores[task]
    return "n/a" if value is None else f"{value:.4f}"


def _others(scores: Mapping[str, float | None], shown: Sequence[str]) -> str:
    """Return the mean of the other known scores."""
    values = [value for task, value in scores.items() if task not in shown and value is not None]
    return f"{sum(values) / len(values):.4f}" if values else ""
