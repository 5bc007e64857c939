"""The embedded tasks: text that every CPython includes, and images, so a first run needs no download.

Five tasks are built from the documentation in the standard library. Its sources are parsed, never imported.

| name | kind | question |
|---|---|---|
| ``packages`` | 10 classes | which large package does this docstring belong to? |
| ``signatures`` | pair | is this the docstring of that function? |
| ``definitions`` | 2 classes | is it the docstring of a class or of a function? |
| ``chapters`` | 5 classes | which part of the language reference is this passage from? |
| ``outcomes`` | 2 classes | does the function with this docstring return a value? |

A row's split is chosen by a hash of its text, so it depends neither on file order nor on Python's hash seed, and a
docstring is in the same split in every task. The rows differ a little between Python versions, as the documentation does:
compare scores within one version.

``digits`` (10 classes), ``digits-low`` and ``digits-high`` (5 each) and ``digits-parity`` (2) are images included in
scikit-learn: see `continual_petl.streams.embedded.digits`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

from continual_petl.errors import InputError
from continual_petl.streams.embedded import about_docstrings, chapters, digits, signatures
from continual_petl.streams.embedded.splits import Example

_BUILDERS: Mapping[str, Callable[[], dict[str, tuple[Example, ...]]]] = MappingProxyType(
    {
        "packages": about_docstrings.packages,
        "signatures": signatures.build,
        "definitions": about_docstrings.definitions,
        "chapters": chapters.build,
        "outcomes": about_docstrings.outcomes,
    }
)


def names() -> tuple[str, ...]:
    """Return the names of the text tasks."""
    return tuple(_BUILDERS)


def image_names() -> tuple[str, ...]:
    """Return the names of the image tasks, which need scikit-learn."""
    return tuple(digits.LABELS)


def load(name: str) -> dict[str, list[dict[str, object]]]:
    """Return the rows of one embedded task, the same for every call.

    Args:
        name: one of :func:`names` or :func:`image_names`.

    Returns:
        ``{"train": rows, "validation": rows, "test": rows}``. A row has ``text``, ``label`` and, for ``signatures``,
        ``text_pair``, all strings. Image rows have ``image``, a list of lists of grey values, and ``label``.

    Raises:
        InputError: if ``name`` is unknown, this Python lacks the sources of its standard library, or scikit-learn is needed
            and not installed.

    Example:
        >>> sorted(load("definitions")["test"][0])
        ['label', 'text']
    """
    known = (*names(), *image_names())
    if name not in known:
        raise InputError(
            f"There is no embedded task {name!r}. The embedded tasks are {', '.join(known)}: give one of these as data.name."
        )
    return {split: [example.row() for example in examples] for split, examples in _built(name).items()}


@cache
def _built(name: str) -> Mapping[str, tuple[Example, ...] | tuple[digits.Picture, ...]]:
    return _BUILDERS[name]() if name in _BUILDERS else digits.build(name)
