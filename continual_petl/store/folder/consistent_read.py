"""Consistent reads of a store while another process writes to it: the state before or after a change, never a mixture.

Readers take no lock. Banks are added, removed and replaced by renaming whole folders, so a reader can detect a change that
was made while it was reading, and read again. A replacement takes two renames, between which the bank is briefly missing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from continual_petl.errors import InputError, StoreError
from continual_petl.store.files.reading import signature_of
from continual_petl.store.folder.bank_folders import BankFolders

_T = TypeVar("_T")
_PATIENCE = 20.0
"""Seconds to wait for the store to stay unchanged during one read."""
_REPLACING = 5.0
"""Seconds after which a bank that is still missing counts as lost, because the process that was replacing it was killed."""


def consistently(store: BankFolders, read: Callable[[], _T], task: str | None) -> _T:
    """Return the result of ``read`` on an unchanging store; retry if a bank is added, removed or replaced meanwhile.

    Args:
        store: the run folder.
        read: reads from the store, without changing anything.
        task: the task that ``read`` reads; None means all tasks.

    Raises:
        InputError, StoreError: if ``read`` raises it while the store does not change.
        StoreError: if the store keeps changing.
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
    raise StoreError(f"{store.folder}: tasks are added and removed faster than they can be read; try again later.")


def _state(store: BankFolders, task: str | None) -> object:
    """Return a value that changes whenever a bank is added or removed: folders are renamed, never filled in place."""
    if task is not None:
        return signature_of(store.bank_folder(task))[0]
    try:
        with os.scandir(store.banks) as found:
            banks = {entry.name: entry.inode() for entry in found if not entry.name.startswith(".")}
    except OSError:
        banks = {}
    return banks, [path.name for path in _stones(store)]


def _stones(store: BankFolders) -> list[Path]:
    try:
        return store.tombstone_files()
    except StoreError:  # reported when the reader reads them
        return []


def _replacing(store: BankFolders, task: str | None) -> bool:
    """Return whether a bank is being replaced: it has a tombstone, and its successor will appear in a moment."""
    files = _stones(store)
    # If the file is from the future, the clock was set back, and its age is unknown.
    if not files or abs(time.time() - signature_of(files[-1])[1] / 1e9) > _REPLACING:
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
