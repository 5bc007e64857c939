"""Finds, imports and identifies code of the user's own, named by ``package.module.name``: a metric, a kind of task.

A certificate holds the digest of the module's file. It is compared before the module is imported, so changed code is
detected without being executed. The digest does not cover what the module imports.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from continual_petl.digests import file_digest
from continual_petl.errors import InputError, did_you_mean


def is_own(name: str) -> bool:
    """Return whether this is the dotted name of something in a module."""
    parts = name.split(".")
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


def import_own(what: str, name: str, form: str) -> Any:
    """Import what a dotted name names; the user must have allowed it.

    Args:
        what: what it is used as, such as ``metric``, for messages.
        name: the dotted name.
        form: what it has to be, for messages.

    Raises:
        InputError: if there is no such module, or nothing of this name in it.
    """
    module, _, attribute = name.rpartition(".")
    try:
        imported = import_module(module)
    except (Exception, SystemExit) as error:  # the module can raise anything
        raise InputError(
            f"{what} {name!r}: module {module} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not hasattr(imported, attribute):
        raise InputError(
            f"{what} {name!r}: module {module} has no {attribute!r}{did_you_mean(attribute, vars(imported))}; a {what} has "
            f"to be {form}."
        )
    return getattr(imported, attribute)


def code_digest(what: str, name: str) -> str:
    """Return the digest of the file of a module; nothing is imported.

    Raises:
        InputError: if there is no such module, or its file cannot be read.
    """
    try:
        return file_digest(file_of(what, name))
    except OSError as error:
        raise InputError(f"{what} {name!r}: the file of its module cannot be read: {error}.") from error


def file_of(what: str, name: str) -> Path:
    """Return the file of a module, without importing a package; raises `InputError` if there is none."""
    module = name.rpartition(".")[0]
    path, spec = None, None
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        part = ".".join(parts[:length])
        spec = _spec(part, path)
        if spec is None:
            raise InputError(
                f"{what} {name!r}: there is no module {part!r}: install its package, or add the folder that has it to "
                "PYTHONPATH."
            )
        path = spec.submodule_search_locations
        if path is None and length < len(parts):
            raise InputError(
                f"{what} {name!r}: {part} is a module, not a package, so it has no module {parts[length]!r}."
            )
    if spec is None or not spec.has_location or spec.origin is None:
        raise InputError(f"{what} {name!r}: module {module} has no file, so a certificate cannot identify its code.")
    return Path(spec.origin)


def _spec(name: str, path: Any) -> ModuleSpec | None:
    # importlib.util.find_spec would import the packages that a module is in.
    found = (finder.find_spec(name, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((spec for spec in found if spec is not None), None)
