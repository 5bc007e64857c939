"""Finds what is added without a line of code elsewhere: files in a folder of this package, and what installed packages add by
entry points: kinds, forms, metrics and figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from continual_petl.errors import InputError


def modules_in(folder: Path) -> tuple[str, ...]:
    """Return the names of the modules in a folder, sorted, without importing them; packages in it are left out."""
    return tuple(sorted(module.name for module in iter_modules([str(folder)]) if not module.ispkg))


@cache
def added(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of the group ``continual_petl.GROUP`` by name, without importing anything."""
    return {entry.name: entry for entry in entry_points(group=f"continual_petl.{group}")}


def load_added(group: str, name: str, make: Callable[[Any], Any] = lambda found: found) -> Any:
    """Import what a package adds.

    Args:
        group: ``kinds``, ``forms``, ``metrics`` or ``figures``.
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


class KnownName:
    """The annotation of a name in a specification, checked like a `Literal` of all names that are known at that time.

    Args:
        names: returns these names.
        refuse: is called first with a name that is not known, and may raise an error of its own.
    """

    def __init__(
        self, names: Callable[[], tuple[str, ...]], refuse: Callable[[object], None] = lambda value: None
    ) -> None:
        self._names, self._refuse = names, refuse

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return how pydantic checks and writes a name."""
        return core_schema.no_info_plain_validator_function(
            self._checked, serialization=core_schema.to_string_ser_schema()
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the names for the JSON Schema."""
        return {"enum": list(self._names()), "type": "string"}

    def _checked(self, value: object) -> str:
        if isinstance(value, str) and value in self._names():
            return value
        self._refuse(value)
        listed = [*map(repr, self._names())]
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(listed[:-1])} or {listed[-1]}"})
