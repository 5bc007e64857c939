"""What the commands share: consoles, JSON on standard output."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from rich.console import Console

from continual_petl.report.console import Told


def out() -> Console:
    """Return the console for results: standard output, wide enough for a table when it is not a terminal."""
    return Told(width=None if sys.stdout.isatty() else 140, highlight=False)


def print_json(value: Any) -> None:
    """Print one JSON document; NaN becomes null."""
    print(json.dumps(plain(value), indent=2, sort_keys=True, allow_nan=False))


def plain(value: Any) -> Any:
    """Return a value as JSON has it: NaN and infinities become null."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
