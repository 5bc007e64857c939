"""Tables in the style of He et al. 2022: means with errors, the best of each column in bold, next to published numbers."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.benchmarks.markdown import grid
from experiments.studies.statistics import Mean, shown

Cell = str | Mean | None


def table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table in Markdown; the highest mean of a column is bold unless all are equal, a missing mean is a dash.

    Example:
        >>> print(table(["", "score"], [["one", Mean(1.0, None, 1)], ["two", Mean(2.0, 0.5, 3)], ["three", None]]))
        |  | score |
        |---|---:|
        | one | 1.0 |
        | two | **2.0 ± 0.5** |
        | three | - |
        >>> print(table(["", "score"], [["one", Mean(0.0, None, 1)], ["two", Mean(0.0, None, 1)]]))
        |  | score |
        |---|---:|
        | one | 0.0 |
        | two | 0.0 |
    """
    best = [_best([c.value for c in column if isinstance(c, Mean)]) for column in zip(*rows, strict=True)]
    return grid(header, [[_shown(cell, top) for cell, top in zip(row, best, strict=True)] for row in rows])


def _best(values: Sequence[float]) -> float | None:
    """Return the highest value; None if there are several values and all are equal."""
    return None if len(values) > 1 and len(set(values)) == 1 else max(values, default=None)


def _shown(cell: Cell, best: float | None) -> str:
    if isinstance(cell, str):
        return cell
    bold = "**" if cell is not None and cell.value == best else ""
    return f"{bold}{shown(cell)}{bold}"


def size(parameters: int, share: float) -> tuple[str, str]:
    """Return the cells of a count and its share.

    Example:
        >>> size(115200, 0.00507)
        ('115,200', '0.51 %')
    """
    return f"{parameters:,}", f"{100 * share:.2f} %"
