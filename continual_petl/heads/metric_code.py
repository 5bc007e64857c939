"""The code of a user-defined metric: a function given as ``package.module.name`` (see `continual_petl.own_code`), or by the
name under which an installed package adds it, in the group ``continual_petl.metrics`` of entry points.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

from continual_petl.added import added
from continual_petl.errors import InputError
from continual_petl.kind import Kind
from continual_petl.kind_registry import kinds
from continual_petl.own_code import code_digest, file_of, import_own
from continual_petl.own_code import is_own as is_own

Function = Callable[[list[Any], list[Any]], Any]
"""Takes predictions and references, and returns a number."""
FORM = "a function (predictions, references) -> float"


def path_of(metric: str) -> str | None:
    """Return the dotted name of a user-defined function; None for a metric of this package.

    Args:
        metric: the name of a metric.
    """
    if metric in added("metrics") and not any(metric in kind.metrics for kind in kinds()):
        return added("metrics")[metric].value.replace(":", ".")
    return metric if is_own(metric) else None


_loaded: dict[str, tuple[Function, str]] = {}
"""The functions that the user has allowed in this process, and the digests of their modules."""


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
    path = path_of(metric) or metric
    code = code_digest("metric", path)
    if metric in _loaded:
        if _loaded[metric][1] != code:
            raise InputError(
                f"metric {metric!r}: {file_of('metric', path)} has changed since it was imported: restart Python."
            )
        return code
    function = import_own("metric", path, FORM)
    _loaded[metric] = _checked(metric, function, path.rpartition(".")[0]), code
    return code


def function_of(metric: str, digest: str) -> Function:
    """Return a function that `load_metric` has imported in this process.

    Raises:
        InputError: if it was not imported, or its module's file had another digest; nothing is imported here.
    """
    function, code = _loaded.get(metric, (None, None))
    if function is None or code != digest:
        raise InputError(
            f"metric {metric!r}: this code has not been imported here, since that needs your permission: allow it as for "
            "remote code, with remote_code: true in the task, or Run(folder, remote_code=True)."
        )
    return function


def lowest(kind: Kind, metric: str) -> float:
    """Return the lowest value of a metric: the attribute ``lowest`` of a user's function, or what its kind says."""
    return float(getattr(_loaded[metric][0], "lowest", 0.0)) if metric in _loaded else kind.lowest(metric)


def code_problem(metric: str, digest: str) -> str | None:
    """Return why a score cannot be computed as it was certified, or None if the code is the same; nothing is imported.

    Args:
        metric: the function's dotted name.
        digest: the certified digest of its module's file.
    """
    path = path_of(metric) or metric
    try:
        code = code_digest("metric", path)
    except InputError as error:
        return f"{error} The score that was certified with it cannot be computed again here."
    if code == digest:
        return None
    return (
        f"metric {metric!r}: {file_of('metric', path)} is not the code that the score was certified with: its SHA-256 is "
        f"{code}, but {digest} was certified. Restore that version, or learn the task under a new name."
    )


def _checked(metric: str, function: Any, module: str) -> Function:
    """Return the attribute, after checking that it is a function whose code is in the module."""
    if not callable(function) or isinstance(function, type):
        problem = "a class" if isinstance(function, type) else f"not a function but {type(function).__name__}"
        raise InputError(f"metric {metric!r}: it is {problem}; a metric has to be {FORM}.")
    home = getattr(function, "__module__", module)
    if isinstance(function, FunctionType) and home != module:
        raise InputError(
            f"metric {metric!r}: this function is defined in module {home}, whose code the certificate has to identify: "
            f"write metric: {home}.{function.__name__}."
        )
    lowest = getattr(function, "lowest", 0.0)
    if isinstance(lowest, bool) or not isinstance(lowest, int | float) or math.isnan(lowest):
        raise InputError(
            f"metric {metric!r}: its attribute lowest is {lowest!r:.80}; it has to be a number, or -math.inf."
        )
    allowed: Function = function
    return allowed
