"""Run the code in README.md of an export as a user would: in a fresh namespace, with other rows and the folder filled in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from continual_petl.exchange.model_card import HERE

VARIABLES = ("texts", "rows", "images", "messages")
"""The variables that hold the example rows."""


def code_in(folder: Path) -> str:
    """Return the code block of the README.md in a folder, with the folder filled in."""
    found = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text("utf-8"), flags=re.S)
    assert len(found) == 1
    return str(found[0]).replace(f'"{HERE}"', repr(str(folder)))


def with_rows(code: str, rows: str) -> str:
    """Return the code with another value of the variable that holds its rows."""
    changed, count = re.subn(
        rf"^({'|'.join(VARIABLES)}) = .*$", lambda m: f"{m[1]} = {rows}", code, count=1, flags=re.M
    )
    assert count == 1
    return changed


def run_readme(folder: Path, rows: Sequence[Any]) -> dict[str, Any]:
    """Run the code in README.md for some rows (or the messages of one conversation); return its variables."""
    space: dict[str, Any] = {"ROWS": [Image.fromarray(row) if hasattr(row, "shape") else row for row in rows]}
    exec(compile(with_rows(code_in(folder), "ROWS"), "README.md", "exec"), space)
    return space
