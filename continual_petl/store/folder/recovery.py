"""Clean up after a killed process: half-written folders, banks that have a tombstone, interrupted replacements."""

from __future__ import annotations

import glob
import os
from contextlib import suppress
from pathlib import Path

from continual_petl.errors import StoreError
from continual_petl.store.certificate.certificate import read_certificate
from continual_petl.store.certificate.tombstone import Tombstone
from continual_petl.store.files.atomic import explain_refusals, remove_unfinished, sync_folder
from continual_petl.store.folder.bank_folders import BankFolders
from continual_petl.store.folder.results_file import was_committed


def clean(store: BankFolders) -> None:
    """Restore a bank whose replacement was never written, and remove forgotten banks and unfinished files.

    Args:
        store: the run; its lock is held, so nobody else is writing.
    """
    with explain_refusals(store.banks):
        stone = interrupted_replacement(store)
        if stone is not None:
            _put_back(store, stone)
        # Only the newest tombstone matters: the folders that older ones name are gone, or were created again later.
        forgotten = [stone for stone in store.counting()[-1:] if stone.why == "forgotten"]
        for stone in forgotten:
            if _seal_of(store.bank_folder(stone.name)) == stone.removed.seal:
                # Renamed first, since a process killed while deleting it could leave a bank without a certificate.
                store.bank_folder(stone.name).rename(store.banks / f".{stone.name}.{os.getpid()}.old.new")
                sync_folder(store.banks)
        progress = store.folder / ".progress"
        for folder in (store.banks, store.tombstone_folder, progress, *progress.glob("[!.]*")):
            if not (folder.is_symlink() or folder.parent.is_symlink()):
                remove_unfinished(folder, links=False)


def interrupted_replacement(store: BankFolders) -> Tombstone | None:
    """Return the tombstone of a replacement, if the process was killed before the new bank was written."""
    files = store.tombstone_files()
    newest = store.tombstone(files[-1]) if files else None
    if newest is None or newest.why != "replaced" or any(link.index > newest.index for link in store.live()):
        return None
    return None if was_committed(store.results_file, newest.index + 1) else newest


def _put_back(store: BankFolders, stone: Tombstone) -> None:
    """Undo a replacement; if the old bank is lost too, the tombstone stays."""
    folder, seal = store.bank_folder(stone.name), stone.removed.seal
    if not folder.exists():
        for aside in store.banks.glob(f".{glob.escape(stone.name)}.*.old.new"):
            if _seal_of(aside) == seal:
                aside.rename(folder)
                sync_folder(store.banks)
                break
    if _seal_of(folder) == seal:
        store.tombstone_files()[-1].unlink()
        sync_folder(store.tombstone_folder)


def _seal_of(folder: Path) -> str | None:
    with suppress(StoreError):
        return read_certificate(folder / "bank.json").seal
    return None
