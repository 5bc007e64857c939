"""The embedded stream: real text that every CPython carries, so that a first run needs no download.

Five tasks are cut from the documentation inside the standard library. Its sources are parsed, never imported.

| name | kind | the question |
|---|---|---|
| ``packages`` | 10 classes | which large package does this docstring belong to? |
| ``signatures`` | pair | is this the docstring of that function? |
| ``definitions`` | 2 classes | is it the docstring of a class or of a function? |
| ``chapters`` | 5 classes | which part of the language reference is this passage from? |
| ``outcomes`` | 2 classes | does the function with this docstring return a value? |

A row's split is a hash of its own text, so it depends neither on file order nor on the hash seed, and one docstring
is in the same split in every task. The rows differ a little between Python versions, as the documentation does:
compare figures within one version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

from continual_petl.errors import InputError
from continual_petl.streams.embedded import chapters, definitions, outcomes, packages, signatures
from continual_petl.streams.embedded.splits import Example

_BUILDERS: Mapping[str, Callable[[], dict[str, tuple[Example, ...]]]] = MappingProxyType(
    {
        "packages": packages.build,
        "signatures": signatures.build,
        "definitions": definitions.build,
        "chapters": chapters.build,
        "outcomes": outcomes.build,
    }
)


def names() -> tuple[str, ...]:
    """Return the names that :func:`load` knows."""
    return tuple(_BUILDERS)


def load(name: str) -> dict[str, list[dict[str, object]]]:
    """Return the rows of one embedded task, the same ones at every call.

    Args:
        name: one of :func:`names`.

    Returns:
        ``{"train": rows, "validation": rows, "test": rows}``. A row has ``text``, for ``signatures`` also
        ``text_pair``, and ``label``, all strings.

    Raises:
        InputError: ``name`` is unknown, or this Python comes without the sources of its standard library.

    Example:
        >>> sorted(load("definitions")["test"][0])
        ['label', 'text']
    """
    if name not in _BUILDERS:
        raise InputError(
            f"There is no embedded task {name!r}. Known are {', '.join(_BUILDERS)}: give one of these as data.name."
        )
    return {split: [example.row() for example in examples] for split, examples in _built(name).items()}


@cache
def _built(name: str) -> dict[str, tuple[Example, ...]]:
    return _BUILDERS[name]()
