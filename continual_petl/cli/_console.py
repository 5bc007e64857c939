"""What the commands share: consoles, JSON on standard output, the name of a stream."""

from __future__ import annotations

import json
import math
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.console import Console

from continual_petl.errors import InputError


def out() -> Console:
    """Return the console for results: standard output, wide enough for a table when it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 140, highlight=False)


def print_json(value: Any) -> None:
    """Print one JSON document; NaN becomes null."""
    print(json.dumps(_plain(value), indent=2, sort_keys=True, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def find_stream(name: str) -> Path:
    """Return the file of a stream: a path, or the name of one in the catalog.

    Raises:
        InputError: if there is neither.
    """
    path = Path(name)
    if path.is_file():
        return path
    if path.is_dir():
        raise InputError(f"{name}: this is a folder; give the stream file itself, such as {path / 'stream.yaml'}")
    catalog = {
        Path(str(entry)).stem: Path(str(entry)) for entry in (files("continual_petl.streams") / "catalog").iterdir()
    }
    if name in catalog:
        return catalog[name]
    known = ", ".join(sorted(catalog))
    raise InputError(
        f"{name}: there is no such file, and no such catalog stream; the catalog has {known}. Check the path: it counts "
        f"from {Path.cwd()}"
    )
