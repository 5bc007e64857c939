"""Lazy public names: a package imports their modules on first use, so that importing the package is fast.

A package lists them once, under ``TYPE_CHECKING``, where type checkers and editors find them, too::

    if TYPE_CHECKING:
        from continual_petl.banks.bank import Bank as Bank

    __getattr__, __dir__, __all__ = lazy_names(__name__)
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

from continual_petl._process import heavy_imports

FROM_ABOVE: dict[str, Callable[..., Any]] = {}
"""Functions that a lower package calls although they are defined in a higher one; the facade, which may import every package
and is always imported first, adds them here."""


_LISTED = re.compile(r"^    from (\S+) import \(?\s*(\w+) as \2\b", re.MULTILINE)


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package, whose source lists its names.

    Args:
        package: the package's ``__name__``.

    Raises:
        ImportError: if the package was installed without its source.
    """
    loader: Any = sys.modules[package].__spec__.loader  # type: ignore[union-attr]
    source: str | None = loader.get_source(package)
    if source is None:
        raise ImportError(
            f"{package}: the source of its __init__.py is missing; install the package with its .py files"
        )
    homes = {name: home for home, name in _LISTED.findall(source)}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(sorted(homes))}")
        with heavy_imports():
            value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names, sorted(homes)
