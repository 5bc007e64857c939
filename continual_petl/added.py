"""Finds what is added without a line of code elsewhere: files in a folder of this package, and what installed packages add by
entry points: kinds, forms, metrics of tasks and of runs, figures and commands.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

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


Item = TypeVar("Item")


class Registry(Generic[Item]):
    """Objects found by their names: kinds or forms.

    Those of this package have a file each, named like them, with a class that has this ``name``; others come from installed
    packages, or are registered in this process.

    Args:
        group: the group of entry points, such as ``kinds``.
        package: the package with the files; only what is looked for is imported.
        base: the class that theirs are derived from.
        hyphens: whether their names have hyphens where those of their files have underscores.
        needs: what their classes need besides ``name``, for messages; ``has_all`` says whether an object has it.
    """

    def __init__(
        self,
        group: str,
        package: str,
        base: type[Item],
        *,
        hyphens: bool,
        needs: str = "",
        has_all: Callable[[Item], bool] | None = None,
    ) -> None:
        self._group, self._package, self._base, self._needs, self._has_all = group, package, base, needs, has_all
        self._separator = "-" if hyphens else "_"
        self._what = group.removesuffix("s")
        self.form = f"a class derived from {base.__module__}.{base.__qualname__}"
        """What a class has to be, for messages."""
        self.registered: dict[str, Item] = {}
        self._loaded: dict[str, Item] = {}

    @cached_property
    def built_in(self) -> tuple[str, ...]:
        """The names of those of this package."""
        folder = Path(__file__).parent.joinpath(*self._package.split(".")[1:])
        return tuple(name.replace("_", self._separator) for name in modules_in(str(folder)) if name != "base")

    def names(self) -> tuple[str, ...]:
        """Return all names: of this package, of installed packages, of this process."""
        return tuple(dict.fromkeys((*self.built_in, *added(self._group), *self.registered)))

    def find(self, name: str) -> Item:
        """Return what has a name.

        Raises:
            InputError: if there is none, or its file or package is broken.
        """
        found = self.registered.get(name) or self._loaded.get(name)
        if found is None:
            found = self._loaded[name] = self._load(name)
        return found

    def register(self, item: Item) -> None:
        """Add an object for this process; an entry point adds it for all.

        Raises:
            InputError: if something else has its name, or it is not complete.
        """
        name = getattr(item, "name", "")
        self._checked(item, name, "it has to be an object of")
        if name in self.names() and type(self.registered.get(name)).__qualname__ != type(item).__qualname__:
            raise InputError(
                f"{self._what} {name!r}: there is a {self._what} of this name already; choose another name."
            )
        self.registered[name] = item

    def _load(self, name: str) -> Item:
        if name in self.built_in:
            module = importlib.import_module(f"{self._package}.{name.replace(self._separator, '_')}")
            own = [kept for kept in vars(module).values() if getattr(kept, "__module__", None) == module.__name__]
            made = next(
                (kept() for kept in own if isinstance(kept, type) and getattr(kept, "name", None) == name), None
            )
            return self._checked(made, name, f"{module.__file__} has to define")
        if name not in added(self._group):
            raise InputError(
                f"{self._what}: got {name!r}; allowed: {', '.join(self.names())}. If a package adds it, install that package."
            )
        made = load_added(self._group, name, lambda loaded: loaded())
        return self._checked(made, name, f"{added(self._group)[name].value} has to be")

    def _checked(self, item: Any, name: str, has_to: str) -> Item:
        if (
            isinstance(item, self._base)
            and getattr(item, "name", None) == name
            and (self._has_all is None or self._has_all(item))
        ):
            return item
        raise InputError(
            f"{self._what} {name!r}: {has_to} {self.form}, with name = {name!r}{self._needs}; it makes {item!r:.80}."
        )
