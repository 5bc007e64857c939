"""Public names of a package that load their module when they are first used, so that importing the package costs nothing.

A package writes its names twice: under ``TYPE_CHECKING``, where type checkers and editors read them, and in a mapping::

    __getattr__, __dir__, __all__ = lazy_names(__name__, {"Bank": "continual_petl.banks.bank"})

``tests/test_facade.py`` holds the two lists against each other.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    Args:
        package: its ``__name__``.
        homes: by public name the module that defines it.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(homes)}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names, list(homes)
