"""Does a call of the documented function return a value, or does it only act? The label is derived from its code."""

from __future__ import annotations

from continual_petl.streams.embedded.splits import Example, assemble
from continual_petl.streams.embedded.stdlib import docstrings


def build() -> dict[str, tuple[Example, ...]]:
    """Return the splits: ``text`` is the docstring, ``label`` is ``value`` or ``nothing``."""
    return assemble(
        Example(source=d.text, text=d.text, label=d.outcome) for d in docstrings() if d.outcome != "unknown"
    )
