"""Dates and times of arrow columns as text in ISO 8601: the same for training and `predict`, on any machine."""

from __future__ import annotations

import re
from datetime import date, time, timedelta
from typing import Any


def has_text(kind: Any) -> bool:
    """Return whether a type of dates or times can be written as text: not the times of an unknown zone."""
    import pyarrow as pa  # importing it takes a moment, and `as_text` does not need it

    if pa.types.is_timestamp(kind) and kind.tz is not None:
        try:
            pa.lib.string_to_tzinfo(kind.tz)
        except (pa.ArrowException, LookupError, ValueError):
            return False
    return not pa.types.is_interval(kind)


def times(array: Any) -> list[Any]:
    """Return dates, times or spans of time as Python has them, or where it has none of that year, as values of arrow."""
    try:
        return array.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError):
        return [scalar if scalar.is_valid else None for scalar in array]


def time_texts(array: Any) -> list[Any]:
    """Return dates, times or spans of time as texts; what is missing is None."""
    return [None if value is None else as_text(value) for value in times(array)]


def is_time(value: Any) -> bool:
    """Return whether a value is one of `times`."""
    return isinstance(value, date | time | timedelta) or hasattr(value, "as_py")


def as_text(value: Any) -> str:
    """Return a date or time in ISO 8601, and a span of time as Python writes it."""
    if hasattr(value, "as_py"):
        return _text(value)
    return str(value) if isinstance(value, timedelta) else str(value.isoformat())


def _text(scalar: Any) -> str:
    try:
        return as_text(scalar.as_py())
    except (OverflowError, ValueError):
        import pyarrow as pa

        kind: Any = scalar.type
        unit: Any = getattr(kind, "unit", "D" if pa.types.is_date32(kind) else "ms")
        if pa.types.is_duration(kind) or pa.types.is_time(kind):
            return f"{scalar.value} {unit}"
        import numpy as np

        moment = np.datetime64(scalar.value, unit)
        if pa.types.is_date(kind):
            return str(moment.astype("datetime64[D]"))
        return re.sub(r"\.0+$", "", str(moment)) + ("" if kind.tz is None else "+00:00")
