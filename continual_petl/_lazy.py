"""Lazy public names: a package imports their modules on first use, so that importing the package is fast.

A package lists its names twice: under ``TYPE_CHECKING``, for type checkers and editors, and in a mapping::

    __getattr__, __dir__, __all__ = lazy_names(__name__, {"Bank": "continual_petl.banks.bank"})

``tests/test_facade.py`` compares the two lists.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from continual_petl._process import heavy_imports

FROM_ABOVE: dict[str, Callable[..., Any]] = {}
"""Functions that a lower package calls although they are defined in a higher one; the facade, which may import every package
and is always imported first, adds them here."""


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    Args:
        package: the package's ``__name__``.
        homes: maps each public name to the module that defines it.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(homes)}")
        with heavy_imports():
            value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names, list(homes)
