"""Reading a store while another process writes to it: what is read is of the state before or after, never of both.

Readers take no lock. Banks come, go and are replaced by renaming whole folders, so a reader can tell that one did while it
was looking, and looks again. Replacing takes two renames, which are not one: a bank is away for a moment between them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from continual_petl.errors import InputError, StoreError
from continual_petl.store.files import signature_of
from continual_petl.store.shelf import Shelf

_T = TypeVar("_T")
_PATIENCE = 20.0
"""Seconds in which a store has to hold still for as long as one look at it takes."""
_REPLACING = 5.0
"""Seconds after which a bank that still is not there was not replaced but lost: its writer was killed."""


def steadily(store: Shelf, read: Callable[[], _T], task: str | None) -> _T:
    """Return what a function reads of a store at rest: if a bank came, went or was replaced meanwhile, it reads again.

    Args:
        store: the run folder.
        read: reads, and changes nothing.
        task: the only task that it looks at; None means all.

    Raises:
        InputError, StoreError: what it raises over a store that did not change.
        StoreError: if the store never holds still.
    """
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if _replacing(store, task):
            time.sleep(0.005)
            continue
        before = _state(store, task)
        try:
            found = read()
        except (InputError, StoreError):
            if _state(store, task) == before and not _replacing(store, task):
                raise
        else:
            if _state(store, task) == before:
                return found
    raise StoreError(f"{store.folder}: tasks come and go faster than they can be read; try again in a while.")


def _state(store: Shelf, task: str | None) -> object:
    """Return what changes whenever a bank is put somewhere or taken away: folders are renamed, never filled in place."""
    if task is not None:
        return signature_of(store.bank_folder(task))[0]
    try:
        with os.scandir(store.banks) as found:
            banks = {entry.name: entry.inode() for entry in found if not entry.name.startswith(".")}
    except OSError:
        banks = {}
    return banks, [path.name for path in _stones(store)]


def _stones(store: Shelf) -> list[Path]:
    try:
        return store.tombstone_files()
    except StoreError:  # which the reader is told when it reads them
        return []


def _replacing(store: Shelf, task: str | None) -> bool:
    """Return whether a bank's tombstone lies there, and its successor will in a moment."""
    files = _stones(store)
    if not files or time.time() - signature_of(files[-1])[1] / 1e9 > _REPLACING:
        return False
    try:
        newest = store.tombstone(files[-1])
    except StoreError:
        return False
    if newest.why != "replaced" or task not in (None, newest.name):
        return False
    if not os.path.exists(store.bank_folder(newest.name)):
        return True
    try:
        return store.link(newest.name).index < newest.index
    except StoreError:
        return False
