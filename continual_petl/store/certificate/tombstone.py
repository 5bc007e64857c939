"""Tombstones: records in the chain of entries that were dropped on purpose.

A tombstone is an entry of the chain like a certificate: it names its predecessor, and the next entry names it. It records
where the dropped entry was (position, seal, predecessor), so the chain can still be followed from end to end; a bank
that is missing without a tombstone was lost or deleted. A lost bank can be dropped on purpose too; its tombstone then records
what is known about it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import PrivateAttr, model_validator

from continual_petl._strict_model import StrictModel
from continual_petl.errors import StoreError
from continual_petl.store.certificate.values import Digest, Index
from continual_petl.store.files.atomic import make_folder
from continual_petl.store.files.sealed import read_record, seal_of, write_record
from continual_petl.streams.schema.field_types import Name


class Removed(StrictModel):
    """The dropped entry."""

    index: Index
    seal: Digest | None
    """None if the entry was lost and its seal is unknown."""
    predecessor: Digest | None


class Tombstone(StrictModel):
    """One entry that was dropped from the run."""

    format_version: Literal[2] = 2
    index: Index
    """Position in the chain."""
    predecessor: Digest | None
    """Seal of the previous entry."""
    task: Name | None
    """None if an entry was lost and its task is unknown."""
    why: Literal["forgotten", "replaced", "lost"]
    """``lost``: it was already missing when it was dropped."""
    removed: Removed
    aside: bool = False
    """Whether the dropped entry was on one side of a fork, so that another entry has the same position."""
    _seal: str | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _consistent(self) -> Tombstone:
        if self.why != "lost" and (self.task is None or self.removed.seal is None):
            raise ValueError("task, removed.seal: only a lost entry may lack them")
        return self

    @property
    def name(self) -> str:
        """The task, or a substitute for messages if it is unknown."""
        return self.task or f"entry {self.removed.index}"

    @property
    def seal(self) -> str:
        """Digest over the whole tombstone; the next entry of the chain names it."""
        return self._seal or seal_of(self.model_dump(mode="json"))


def tombstone_file(folder: Path, index: int) -> Path:
    """Return the path of the tombstone at a position of the chain."""
    return folder / f"{index:06d}.json"


def write_tombstone(folder: Path, tombstone: Tombstone) -> None:
    """Write a tombstone; from then on, the dropped bank is not part of the run, even if its folder still exists."""
    make_folder(folder)
    try:
        write_record(tombstone_file(folder, tombstone.index), tombstone)
    except StoreError:
        with suppress(OSError):
            folder.rmdir()  # unless there are others
        raise


def take_back(folder: Path, tombstone: Tombstone) -> None:
    """Remove a tombstone that was just written: the bank is part of the run again, if its folder still exists."""
    tombstone_file(folder, tombstone.index).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()  # unless there are others


def read_tombstone(path: Path) -> Tombstone:
    """Read a tombstone, or raise `StoreError` naming the file and what is wrong with it."""
    try:
        tombstone, seal = read_record(path, Tombstone)
    except FileNotFoundError:
        raise StoreError(f"{path}: missing; a tombstone was removed") from None
    if path != tombstone_file(path.parent, tombstone.index):
        raise StoreError(
            f"{path}: this is the tombstone at position {tombstone.index} of the chain; a file was renamed"
        )
    tombstone._seal = seal
    return tombstone
