"""A line of LEDGER.md: a published number, ours in the nearest setting, and whether it is reproduced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.published.table import Published
from experiments.studies.claims import ERRORS
from experiments.studies.statistics import Mean, shown

NEAR = 2.0
"""Largest difference, in points, at which a number counts as reproduced."""
NOT_AT_HAND = "data not at hand"


@dataclass(frozen=True, kw_only=True)
class Line:
    """A published number beside ours."""

    what: str
    published: str
    """As printed in the source."""
    source: str
    ours: Mean | None
    apart: str = ""
    """Why the two numbers cannot be compared; empty if they can."""
    note: str = ""
    """A caveat, or the likely reason if the number is not reproduced."""

    @property
    def verdict(self) -> str:
        """Whether the number is reproduced, and why not.

        Example:
            >>> Line(what="", published="73.3", source="", ours=Mean(74.1, 0.3, 3)).verdict
            'reproduced'
        """
        if self.apart:
            return f"not comparable: {self.apart}"
        if self.ours is None:
            return "not run"
        gap, error = round(self.ours.value - float(self.published), 6), self.ours.error or 0.0
        if error > NEAR and abs(gap) < ERRORS * error:
            return f"not comparable: a standard error of {error:.1f}"
        return "reproduced" if abs(gap) <= NEAR else f"**not reproduced**: {gap:+.1f}"

    @property
    def shown(self) -> str:
        """Our number, with a sign if the published one has a sign, because it is a difference."""
        signed = self.ours is not None and self.ours.value >= 0 and self.published[0] in "+-"
        return ("+" if signed else "") + shown(self.ours)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The lines that share a setting."""

    title: str
    published: str
    """The setting of the published numbers."""
    ours: str
    """The setting of ours."""
    commands: tuple[str, ...] = ()
    """Run the published setting, or the nearest one, on a machine that has its backbone and data."""
    lines: Sequence[Line]


def beside(row: Published, ours: Mean | None, apart: str) -> Line:
    """Return the line of a published number that cannot be compared."""
    return Line(what=row.method, published=row.value, source=row.source, ours=ours, apart=apart, note=row.flag)


def difference(one: Mean | None, other: Mean | None) -> Mean | None:
    """Return the difference of two means, whose errors are independent; None if one is missing."""
    if one is None or other is None:
        return None
    known = one.error is not None and other.error is not None
    error = math.hypot(one.error or 0.0, other.error or 0.0) if known else None
    return Mean(one.value - other.value, error, min(one.count, other.count))


def one_run(share: float | None) -> Mean | None:
    """Return a share that was measured once, in points."""
    return None if share is None else Mean(100 * share, None, 1)


def section(group: Group) -> str:
    """Return the section of a group, in Markdown."""
    told = [f"* published: {group.published}", f"* ours: {group.ours}"]
    told.append(f"* elsewhere: {', '.join(f'`{each}`' for each in group.commands) or 'no command'}")
    rows = ["| | published | ours | verdict | source | notes |", "|---|---:|---:|---|---|---|"]
    for line in group.lines:
        cells = (line.what, line.published, line.shown, line.verdict, line.source, line.note)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([f"## {group.title}", "", *told, "", *rows])
