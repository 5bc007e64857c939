"""Finds, imports and identifies the code of a user-defined metric: a function given as ``package.module.name``.

The certificate holds the digest of the module's file. It is compared before the module is imported, so changed code is
detected without being executed. The digest does not cover what the module imports.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType
from typing import Any

from continual_petl.digests import file_digest
from continual_petl.errors import InputError, did_you_mean

Function = Callable[[list[Any], list[Any]], Any]
"""Takes predictions and references, and returns a number."""
FORM = "a function (predictions, references) -> float"

_loaded: dict[str, tuple[Function, str]] = {}
"""The functions that the user has allowed in this process, and the digests of their modules."""


def is_own(metric: str) -> bool:
    """Return whether a metric is given as the dotted name of a function."""
    parts = metric.split(".")
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


def load_metric(metric: str, digest: str | None = None) -> str:
    """Import a function, which the user must have allowed; return the digest of its module's file.

    Args:
        metric: its dotted name.
        digest: the digest that its module's file must have; None means any.

    Raises:
        InputError: if there is no such function, or its module's file differs or cannot be read.
    """
    if digest is not None and (problem := code_problem(metric, digest)) is not None:
        raise InputError(problem)
    module, _, name = metric.rpartition(".")
    found = code_digest(metric)
    if metric in _loaded:
        if _loaded[metric][1] != found:
            raise InputError(f"metric {metric!r}: {_file(metric)} has changed since it was imported: restart Python.")
        return found
    try:
        imported = import_module(module)
    except (Exception, SystemExit) as error:  # the module can raise anything
        raise InputError(
            f"metric {metric!r}: module {module} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not hasattr(imported, name):
        raise InputError(
            f"metric {metric!r}: module {module} has no {name!r}{did_you_mean(name, vars(imported))}; a metric has to be "
            f"{FORM}."
        )
    _loaded[metric] = _checked(metric, getattr(imported, name), module), found
    return found


def function_of(metric: str, digest: str) -> Function:
    """Return a function that `load_metric` has imported in this process.

    Raises:
        InputError: if it was not imported, or its module's file had another digest; nothing is imported here.
    """
    function, found = _loaded.get(metric, (None, None))
    if function is None or found != digest:
        raise InputError(
            f"metric {metric!r}: this code has not been imported here, since that needs your permission: allow it as for "
            "remote code, with remote_code: true in the task, or Run(folder, remote_code=True)."
        )
    return function


def code_problem(metric: str, digest: str) -> str | None:
    """Return why a score cannot be computed as it was certified, or None if the code is the same; nothing is imported.

    Args:
        metric: the function's dotted name.
        digest: the certified digest of its module's file.
    """
    try:
        found = code_digest(metric)
    except InputError as error:
        return f"{error} The score that was certified with it cannot be computed again here."
    if found == digest:
        return None
    return (
        f"metric {metric!r}: {_file(metric)} is not the code that the score was certified with: its SHA-256 is {found}, but "
        f"{digest} was certified. Restore that version, or learn the task under a new name."
    )


def _checked(metric: str, function: Any, module: str) -> Function:
    """Return the attribute, after checking that it is a function whose code is in the module."""
    if not callable(function) or isinstance(function, type):
        what = "a class" if isinstance(function, type) else f"not a function but {type(function).__name__}"
        raise InputError(f"metric {metric!r}: it is {what}; a metric has to be {FORM}.")
    home = getattr(function, "__module__", module)
    if isinstance(function, FunctionType) and home != module:
        raise InputError(
            f"metric {metric!r}: this function is defined in module {home}, whose code the certificate has to identify: "
            f"write metric: {home}.{function.__name__}."
        )
    allowed: Function = function
    return allowed


def code_digest(metric: str) -> str:
    """Return the digest of the file of a function's module; nothing is imported.

    Raises:
        InputError: if there is no such module, or its file cannot be read.
    """
    try:
        return file_digest(_file(metric))
    except OSError as error:
        raise InputError(f"metric {metric!r}: the file of its module cannot be read: {error}.") from error


def _file(metric: str) -> Path:
    """Return the file of a metric's module, without importing a package."""
    module = metric.rpartition(".")[0]
    path, spec = None, None
    parts = module.split(".")
    for length in range(1, len(parts) + 1):
        name = ".".join(parts[:length])
        spec = _spec(name, path)
        if spec is None:
            raise InputError(
                f"metric {metric!r}: there is no module {name!r}: install its package, or add the folder that has it to "
                "PYTHONPATH."
            )
        path = spec.submodule_search_locations
        if path is None and length < len(parts):
            raise InputError(
                f"metric {metric!r}: {name} is a module, not a package, so it has no module {parts[length]!r}."
            )
    if spec is None or not spec.has_location or spec.origin is None:
        raise InputError(f"metric {metric!r}: module {module} has no file, so a certificate cannot identify its code.")
    return Path(spec.origin)


def _spec(name: str, path: Any) -> ModuleSpec | None:
    # importlib.util.find_spec would import the packages that a module is in.
    found = (finder.find_spec(name, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((spec for spec in found if spec is not None), None)
