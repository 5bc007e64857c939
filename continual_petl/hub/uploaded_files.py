"""Which files of a run belong on the Hub: those that its chain names, and no others.

Locks, half-learned tasks, logs and reports are never uploaded. Downloads are checked against the same list: other
files at the top level, such as README.md, are ignored; anything unknown among banks and tombstones is refused.
Runs that were uploaded before there were ledgers can be downloaded too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from continual_petl.errors import InputError, StoreError, known_names
from continual_petl.report.formatting import megabytes
from continual_petl.store.certificate.certificate import FILES, ROUTER
from continual_petl.store.files.reading import MAX_JSON_BYTES
from continual_petl.store.folder.format_2 import RESULTS, SIGNATURE
from continual_petl.store.ledger.ledger_file import NAME as LEDGER
from continual_petl.store.store import MAX_ROUTER_BYTES, Store

_TOP = {"stream.yaml": MAX_JSON_BYTES, "backbone.json": MAX_JSON_BYTES, LEDGER: 4 * 2**30}
_OLD = {RESULTS: 4 * 2**30, SIGNATURE: MAX_JSON_BYTES}
_BANK = {"bank.json": MAX_JSON_BYTES} | dict.fromkeys(FILES, 16 * 2**30) | {ROUTER: MAX_ROUTER_BYTES}
_IN_BANK = re.compile(rf"banks/[A-Za-z0-9][A-Za-z0-9._-]*(@[0-9]+)?/(?P<file>{'|'.join(map(re.escape, _BANK))})")
_TOMBSTONE = re.compile(r"tombstones/\d{6,12}\.json")
PATTERNS = (*_TOP, *_OLD, "banks/*", "tombstones/*")
"""The files requested in a download, as wildcard patterns."""
MAX_BYTES = 64 * 2**30
"""Maximum size of a download; anything larger has to be downloaded explicitly."""
MAX_FILES = 500_000


def limit_of(path: str) -> int | None:
    """Return the maximum size in bytes of a run's file, given its path in the repository; None if no run has such a file."""
    if path in _TOP | _OLD:
        return (_TOP | _OLD)[path]
    if (match := _IN_BANK.fullmatch(path)) is not None:
        return _BANK[match["file"]]
    return MAX_JSON_BYTES if _TOMBSTONE.fullmatch(path) else None


def files_of(store: Store) -> dict[str, Path]:
    """Return the files of a run by their paths in the repository; the caller holds the run's lock."""
    files = {name: store.folder / name for name in _TOP if (store.folder / name).exists()}
    for task in store.tasks:
        for name in ("bank.json", *store.certificate(task).files):
            path = store.bank_folder(task) / name
            files[path.relative_to(store.folder).as_posix()] = path
    return files


def check_listed(sizes: Mapping[str, int], where: str) -> list[str]:
    """Return the paths of a run's files in a repository.

    Args:
        sizes: size in bytes of every file, by path.
        where: the repository, for messages.

    Raises:
        InputError: if the repository holds no run.
        StoreError: if there are files that no run has, or files that are too large.
    """
    if "stream.yaml" not in sizes:
        adapter = "adapter_config.json" in sizes
        hint = ", but a peft adapter: load it with `PeftModel.from_pretrained`" if adapter else ""
        raise InputError(f"{where}: this repository holds no run (no stream.yaml in it){hint}")
    kept = []
    for path, size in sizes.items():
        limit = limit_of(path)
        if limit is None:
            if path.startswith(("banks/", "tombstones/")):
                raise StoreError(
                    f"{where}: unexpected file {path!r}: in a run, banks/ and tombstones/ can only contain "
                    f"{known_names([*_BANK, 'tombstones'])}. Nothing was downloaded; tell the author."
                )
            continue
        if size > limit:
            raise StoreError(
                f"{where}: its file {path!r} takes {megabytes(size)}, but such a file may take at most "
                f"{megabytes(limit)}. Nothing was downloaded; tell the author."
            )
        kept.append(path)
    total = sum(sizes[path] for path in kept)
    if total > MAX_BYTES or len(kept) > MAX_FILES:
        raise StoreError(
            f"{where}: {len(kept):,} files, {megabytes(total)} in total, exceed the limit for automatic downloads "
            f"({MAX_FILES:,} files, {megabytes(MAX_BYTES)}). Download the run with `hf download` and give its folder."
        )
    return kept
