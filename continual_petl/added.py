"""What installed packages add, found by its name among the entry points of a group: kinds, metrics and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from continual_petl.errors import InputError


@cache
def added(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of the group ``continual_petl.GROUP`` by name, without importing anything."""
    return {entry.name: entry for entry in entry_points(group=f"continual_petl.{group}")}


def load_added(group: str, name: str, make: Callable[[Any], Any] = lambda found: found) -> Any:
    """Import what a package adds.

    Args:
        group: ``kinds``, ``metrics`` or ``figures``.
        name: the name of the entry point.
        make: what to do with it.

    Raises:
        InputError: if this fails.
    """
    entry = added(group)[name]
    try:
        return make(entry.load())
    except Exception as error:  # the package can raise anything
        raise InputError(
            f"{group.removesuffix('s')} {name!r}: {entry.value} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
