"""The learned tasks of a run folder, as of the last call of `refresh`, which costs two system calls if nothing has
changed.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from continual_petl.errors import StoreError, known_names
from continual_petl.report.inventory import entry_of
from continual_petl.serve.accepted_rows import AcceptedRows
from continual_petl.serve.problems import Problem
from continual_petl.store.certificate.certificate import ROUTER, Certificate
from continual_petl.store.open_run import open_store
from continual_petl.store.store import Store

_MAX_TASKS = 20_000
"""Maximum number of tasks whose certificates are kept in memory, at about 50 kB each."""


@dataclass(frozen=True)
class KnownTask:
    """A learned task."""

    certificate: Certificate
    rows: AcceptedRows
    """Which rows it takes."""
    entry: dict[str, Any]
    """Its kind, labels, score, size and seal."""


class Catalog:
    """The tasks of a run folder. Use one instance per thread; only `refresh` may be called from other threads.

    Args:
        folder: the run folder.

    Raises:
        InputError: if the folder holds no run.
        StoreError: if its chain is broken, or entries are missing.
    """

    def __init__(self, folder: str | Path) -> None:
        open_store(folder)
        self._live = Store(Path(folder), max_certificates=_MAX_TASKS)
        self._stamp: object = None
        self._refreshing = threading.Lock()
        self._known: dict[str, KnownTask] = {}
        self._taken: tuple[dict[str, str], AcceptedRows] | None = None
        self.store = self._live
        """The run folder as it was at the last call of `refresh`."""
        self.seals: dict[str, str] = {}
        """The seal of each learned task's certificate."""
        self.forgotten: frozenset[str] = frozenset()
        """Tasks that were forgotten on purpose and not learned again."""
        self.refresh()

    def refresh(self) -> bool:
        """Read the folder again if banks were added, replaced or removed; return whether they were.

        Raises:
            StoreError: if the chain is broken, or entries are missing; the tasks then stay as they were.
        """
        with self._refreshing:
            stamp = self._live.stamps()
            if stamp == self._stamp:
                return False
            if not self._live.stream_file.is_file():  # for instance, the disk is no longer mounted
                raise StoreError(f"{self._live.folder}: the run is no longer there")
            self._live.check_complete()
            store = self.store.snapshot()  # the snapshot keeps the certificates that are already in memory
            seals = {commit.task: commit.seal for commit in store.commits()}
            stones = {stone.task for stone in store.tombstones()}
            kept = {*seals.values()}
            self._known = {seal: known for seal, known in self._known.copy().items() if seal in kept}
            self.seals, self.forgotten = seals, frozenset(stones.difference(seals))
            self.store, self._stamp = store, stamp
            return True

    def changed(self) -> bool:
        """Return whether banks were added, replaced or removed since the last call of `refresh`."""
        return self._live.stamps() != self._stamp

    def task(self, task: str) -> KnownTask:
        """Return what is known of a learned task.

        Raises:
            Problem: if the task was forgotten (410), or has not been learned (404).
            StoreError: if its certificate cannot be read; it may have been forgotten since the last call of `refresh`.
        """
        if seal := self.seals.get(task):
            if (
                kept := self._known.get(seal)
            ) is not None:  # looked up once: `refresh` replaces the mapping in its thread
                return kept
            certificate = self.store.certificate(task)
            entry = entry_of(self.store, task) | {
                "labels": None if certificate.labels is None else list(certificate.labels),
                "pair": certificate.pair,
                "routing": ROUTER in certificate.files,
                "seal": certificate.seal,
            }
            while len(self._known) >= _MAX_TASKS:
                del self._known[next(iter(self._known))]
            known = self._known[certificate.seal] = KnownTask(certificate, AcceptedRows.by(certificate), entry)
            return known
        if task in self.forgotten:
            raise Problem(
                410, "forgotten", f"task {task!r} was forgotten on purpose: no bank predicts its rows any more"
            )
        names = known_names(list(self.seals), task)
        raise Problem(404, "unknown_task", f"task {task!r} has not been learned; learned tasks: {names}")

    def certificate(self, task: str) -> Certificate:
        """Return a learned task's certificate; see `task`."""
        return self.task(task).certificate

    def taken(self) -> AcceptedRows:
        """Return which rows the learned tasks take; after a change, only the certificates of new tasks are read."""
        seals = self.seals
        if self._taken is not None and self._taken[0] is seals:
            return self._taken[1]
        per_task = list[AcceptedRows]()
        for task in seals:
            with suppress(Problem, StoreError):  # it cannot be read at the moment; a request for the task says so
                per_task.append(self.task(task).rows)
        taken = AcceptedRows.union(per_task)
        if len(per_task) == len(seals):
            self._taken = seals, taken
        return taken
