"""Three tasks on docstrings: the package, whether a class or a function is documented, and whether a call returns a value.

The package is one of ten large ones; their names are hidden wherever they occur as a word (``HTTP_COOKIE`` loses its first
half, ``HTTPConnection`` is a different word and stays), so the label has to be inferred from the subject. Whether a call
returns a value is derived from the code.
"""

from __future__ import annotations

import re

from continual_petl.streams.embedded.splits import Example, assemble
from continual_petl.streams.embedded.stdlib import docstrings

PACKAGES = (
    "asyncio",
    "decimal",
    "email",
    "http",
    "importlib",
    "logging",
    "multiprocessing",
    "tarfile",
    "unittest",
    "xml",
)
_NAMES = re.compile(rf"(?<![a-z])(?:{'|'.join(PACKAGES)})(?![a-z])", re.IGNORECASE)


def packages() -> dict[str, tuple[Example, ...]]:
    """Return the splits: ``text`` is the docstring, ``label`` the package."""
    return assemble(
        Example(source=d.text, text=_NAMES.sub("...", d.text), label=d.package)
        for d in docstrings()
        if d.package in PACKAGES
    )


def definitions() -> dict[str, tuple[Example, ...]]:
    """Return the splits: ``text`` is the docstring, ``label`` is ``class`` or ``function``."""
    return assemble(Example(source=d.text, text=d.text, label=d.kind) for d in docstrings())


def outcomes() -> dict[str, tuple[Example, ...]]:
    """Return the splits: ``text`` is the docstring, ``label`` is ``value`` or ``nothing``."""
    return assemble(
        Example(source=d.text, text=d.text, label=d.outcome) for d in docstrings() if d.outcome != "unknown"
    )
