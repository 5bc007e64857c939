"""The mark after a score on validation rows, and its explanation, for lists, pages and terminals."""

from __future__ import annotations

ON_VALIDATION = "* on validation rows: the task has no test rows"


def mark_of(split: str) -> str:
    """Return the mark for a score on this split: a star unless it is the test split."""
    return "" if split == "test" else "*"
