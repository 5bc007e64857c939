"""Finds what is added without a line of code elsewhere: files in a folder of this package, and what installed packages add by
entry points: kinds, forms, metrics of tasks and of runs, figures and commands.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from continual_petl.errors import InputError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@cache
def files_of(package: str) -> Mapping[str, Any]:
    """Import the files of a package, such as ``continual_petl.cli.commands``; return them by name."""
    names = modules_in(*importlib.import_module(package).__path__)
    return {name: importlib.import_module(f"{package}.{name}") for name in names}


def modules_in(*folders: str) -> tuple[str, ...]:
    """Return the names of the modules in folders, sorted, without importing them; packages in them are left out."""
    # pkgutil does the same, but importing it takes a seventh of the time of --help.
    return tuple(sorted({file.stem for folder in folders for file in Path(folder).glob("*.py")} - {"__init__"}))


@cache
def added(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of the group ``continual_petl.GROUP`` by name, without importing anything."""
    from importlib.metadata import entry_points  # takes a third of the time of --help

    return {entry.name: entry for entry in entry_points(group=f"continual_petl.{group}")}


def load_added(group: str, name: str, make: Callable[[Any], Any] = lambda found: found) -> Any:
    """Import what a package adds.

    Args:
        group: ``kinds``, ``forms``, ``metrics``, ``matrix_metrics``, ``figures`` or ``commands``.
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
