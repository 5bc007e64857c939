"""Does a docstring document a class or a function?"""

from __future__ import annotations

from continual_petl.streams.embedded.splits import Example, assemble
from continual_petl.streams.embedded.stdlib import docstrings


def build() -> dict[str, tuple[Example, ...]]:
    """Return the splits: ``text`` is the docstring, ``label`` is ``class`` or ``function``."""
    return assemble(Example(source=d.text, text=d.text, label=d.kind) for d in docstrings())
