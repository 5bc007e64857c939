"""Format numbers for lists, pages and terminals, and mark scores on validation rows."""

from __future__ import annotations

import math
from collections.abc import Mapping

from continual_petl.heads.metric_names import ERROR_NAMES, ERRORS

IN_BRACKETS = "errors in the unit of the targets; in brackets: of always predicting the mean"
_MAX_ERRORS, _WIDEST = 12, 80
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


def amount(value: float) -> str:
    """Format a number that has a unit, such as an error, with at least four digits.

    Example:
        >>> [amount(value) for value in (12.3456, 1234567.8, 1e-7)]
        ['12.35', '1,234,568', '1e-07']
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def measure(name: str, value: float) -> str:
    """Format a score or, if this is the name of an error, an error."""
    return amount(value) if name in ERROR_NAMES else number(value)


def errors_in_words(errors: Mapping[str, float]) -> str:
    """Describe the errors of a regression, each with that of always predicting the mean in brackets.

    Example:
        >>> errors_in_words({"rmse": 6.25, "rmse_of_mean": 20.5})
        'rmse 6.25 (20.5)'
    """
    return ", ".join(
        f"{name} {amount(errors[name])}" + (f" ({amount(errors[of_mean])})" if of_mean in errors else "")
        for name, of_mean in ERRORS.items()
        if name in errors
    )


def error_lines(tasks: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return a line for each regression task, and their meaning; of many tasks, only the last ones are listed."""
    shown = [*tasks][-_MAX_ERRORS:]
    lines = []
    for task in shown:
        errors = errors_in_words(tasks[task])
        lines += [f"{task}: {errors}"] if len(task) + len(errors) + 2 <= _WIDEST else [f"{task}:", f"  {errors}"]
    if len(tasks) > len(shown):
        lines.append(f"and the errors of {len(tasks) - len(shown):,} earlier tasks: --json lists all")
    return [*lines, IN_BRACKETS] if lines else []


def megabytes(num_bytes: int) -> str:
    """Format a number of bytes with a unit, to three digits.

    Example:
        >>> [megabytes(size) for size in (0, 999, 1234, 999_700, 24_190_000)]
        ['0 bytes', '999 bytes', '1.23 kB', '1 MB', '24.2 MB']
    """
    value, units = float(num_bytes), ["bytes", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.3g} {units[0]}"
