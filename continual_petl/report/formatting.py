"""Format numbers for lists, pages and terminals, and mark scores on validation rows."""

from __future__ import annotations

import math

ON_VALIDATION = "* on validation rows: the task has no test rows"


def mark_of(split: str) -> str:
    """Return the mark for a score on this split: a star unless it is the test split."""
    return "" if split == "test" else "*"


def number(value: float | None) -> str:
    """Format a score; 0 without decimals means exactly zero, not a score that rounds to 0.0000."""
    if value is None or math.isnan(value):
        return "not known"
    if value == 0:
        return "0"
    return f"{value:.4f}" if abs(value) >= 0.00005 else f"{value:.1e}"


def megabytes(num_bytes: int) -> str:
    """Format a number of bytes with a unit."""
    value, units = float(num_bytes), ("bytes", "kB", "MB", "GB", "TB")
    for unit in units[:-1]:
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} {units[-1]}"
