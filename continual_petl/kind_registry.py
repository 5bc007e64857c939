"""Where kinds of tasks are found, and which may be imported.

The kinds of this package are in `continual_petl.kinds`, one file each: ``causal_lm.py`` has the kind ``causal-lm``. An
installed package can add one: a class derived from `Kind` (or from one of those), registered under its name as an entry
point of the group ``continual_petl.kinds``. A stream file can name any other such class, ``package.module.name``, which is
imported with the user's permission.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Protocol

from continual_petl._strict_model import KnownName
from continual_petl.added import Registry, added
from continual_petl.errors import InputError
from continual_petl.kind import Kind
from continual_petl.own_code import code_digest, file_of, import_own, is_own

REGISTRY = Registry("kinds", "continual_petl.kinds", Kind, hyphens=True)


def built_in() -> tuple[str, ...]:
    """Return the names of the kinds of this package: those of the files in `continual_petl.kinds`, with hyphens."""
    return REGISTRY.built_in


class HasKind(Protocol):
    """A task, a plan or a certificate."""

    @property
    def kind(self) -> str:
        """The name of the kind."""


def kind_of(task: HasKind) -> Kind:
    """Return the kind of a task, of a plan or of a certificate."""
    return find_kind(task.kind)


def find_kind(name: str) -> Kind:
    """Return a kind by its name.

    Raises:
        InputError: if there is none, or the package that adds it is broken.
    """
    if is_own(name) and name not in kind_names():
        raise InputError(not_allowed(name))
    return REGISTRY.find(name)


def allow_kind(name: str, digest: str | None = None) -> None:
    """Import a kind that is named by ``package.module.name``; the user must have allowed it.

    Args:
        name: the dotted name of the class.
        digest: the digest that its module's file must have; None means any.

    Raises:
        InputError: if there is no such class, or its module's file differs or cannot be read; nothing is imported then.
    """
    found = code_digest("kind", name)
    if digest is not None and found != digest:
        raise InputError(changed_kind(name, found, digest))
    if name in _codes:
        if _codes[name] != found:
            raise InputError(
                f"kind {name!r}: {file_of('kind', name)} has changed since it was imported: restart Python."
            )
        return
    made = import_own("kind", name, REGISTRY.form)
    if not (isinstance(made, type) and issubclass(made, Kind)) or made.__module__ != name.rpartition(".")[0]:
        raise InputError(
            f"kind {name!r}: it is {made!r:.80}; a kind has to be {REGISTRY.form}, defined in the module that is named."
        )
    kind = made()
    kind.name = name
    REGISTRY.registered[name], _codes[name] = kind, found


def kind_code(name: str) -> str | None:
    """Return the digest of the code of a kind that is named by ``package.module.name``; None for all others."""
    return _codes.get(name)


def not_allowed(name: str) -> str:
    """Return the message that a kind that is named by ``package.module.name`` is not imported."""
    return (
        f"kind {name!r}: it is a class of a Python module, which is not imported without your permission, since it can do "
        "whatever you can. Read that code, then write remote_code: true in the task; for a run folder, which may come from "
        "anyone, pass --remote-code, or Run(folder, remote_code=True)."
    )


def changed_kind(name: str, actual: str, digest: str) -> str:
    """Return the message that the code of a kind is not that of a bank."""
    return (
        f"kind {name!r}: {file_of('kind', name)} is not the code that the task was learned with: its SHA-256 is {actual}, "
        f"but {digest} was certified. Restore that version."
    )


@contextmanager
def kinds_refused() -> Iterator[None]:
    """Import no kind in the block, whatever a specification says: it is from a run folder, which may come from anyone."""
    token = _may_import.set(False)
    try:
        yield
    finally:
        _may_import.reset(token)


def import_kind(tree: object) -> None:
    """Import the kind of a task, given as plain data, if the task allows it; do nothing inside `kinds_refused`."""
    if _may_import.get() and (name := own_kind(tree)) is not None:
        allow_kind(name)


def own_kind(tree: object) -> str | None:
    """Return the kind that a task, given as plain data, asks to import; None if it asks for none."""
    if not isinstance(tree, Mapping) or tree.get("remote_code") is not True:
        return None
    name = tree.get("kind")
    return name if isinstance(name, str) and is_own(name) and name not in added("kinds") else None


def register_kind(kind: Kind) -> None:
    """Add a kind for this process; an entry point of the group ``continual_petl.kinds`` adds it for all.

    Raises:
        InputError: if there is another kind of this name.
    """
    REGISTRY.register(kind)


def kind_names() -> tuple[str, ...]:
    """Return the names of all kinds: those of this package, then those that installed packages or this process add."""
    return REGISTRY.names()


def kinds() -> tuple[Kind, ...]:
    """Return all kinds, in the order of their names' list."""
    return tuple(map(find_kind, kind_names()))


def names_where(fact: str) -> tuple[str, ...]:
    """Return the names of the kinds for which a fact holds.

    Example:
        >>> names_where("generates")
        ('causal-lm', 'seq2seq')
    """
    return tuple(kind.name for kind in kinds() if getattr(kind, fact))


_codes: dict[str, str] = {}
"""The digests of the modules of kinds that the user has allowed in this process."""
_may_import = ContextVar("_may_import", default=True)


def _refuse(value: object) -> None:
    if isinstance(value, str) and is_own(value):
        raise InputError(not_allowed(value))


KindName = Annotated[str, KnownName(REGISTRY, _refuse)]
"""The name of a kind, as in a stream file."""
