"""The mark behind a score of validation rows, and the line that explains it; lists, pages and terminals share them."""

from __future__ import annotations

ON_VALIDATION = "* on validation rows: the task has no test rows"


def mark_of(split: str) -> str:
    """Return what stands behind a score of this split: a star unless it is of test rows."""
    return "" if split == "test" else "*"
