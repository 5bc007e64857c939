"""The learned tasks of a run folder, as of the last call of `refresh`, which costs two system calls if nothing has
changed.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from continual_petl.errors import StoreError, known_names
from continual_petl.report.inventory import entry_of
from continual_petl.serve.accepted_rows import AcceptedRows
from continual_petl.serve.problems import Problem, Unreadable
from continual_petl.store.certificate.certificate import ROUTER, Certificate
from continual_petl.store.open_run import open_store
from continual_petl.store.store import Store

_MAX_CERTIFICATES = 20_000
"""Maximum number of certificates kept in memory, at about 50 kB each."""


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
        self._live = Store(Path(folder), max_certificates=_MAX_CERTIFICATES)
        self._stamp: object = None
        self._refreshing = threading.Lock()
        self._certificates: dict[str, Certificate] = {}
        self._entries: dict[str, dict[str, Any]] = {}
        self._taken: dict[str, AcceptedRows] = {}
        self._together: tuple[dict[str, str], AcceptedRows] | None = None
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
            stamp = self._live.stamp()
            if stamp == self._stamp:
                return False
            if not self._live.stream_file.is_file():  # for instance, the disk is no longer mounted
                raise StoreError(f"{self._live.folder}: the run is no longer there")
            self._live.check_complete()
            store = self.store.snapshot()  # the snapshot keeps the certificates that are already in memory
            seals = {link.task: link.seal for link in store.links()}
            stones = {stone.task for stone in store.tombstones() if stone.task is not None}
            kept = {*seals.values()}
            self._certificates = {seal: value for seal, value in self._certificates.copy().items() if seal in kept}
            self._entries = {seal: value for seal, value in self._entries.copy().items() if seal in kept}
            self._taken = {seal: value for seal, value in self._taken.copy().items() if seal in kept}
            self.seals, self.forgotten = seals, frozenset(stones.difference(seals))
            self.store, self._stamp = store, stamp
            return True

    def changed(self) -> bool:
        """Return whether banks were added, replaced or removed since the last call of `refresh`."""
        return self._live.stamp() != self._stamp

    def certificate(self, task: str) -> Certificate:
        """Return a learned task's certificate.

        Raises:
            Problem: if the task was forgotten (410), or has not been learned (404).
            Unreadable: if the certificate cannot be read; the task may have been forgotten since the last call of `refresh`.
        """
        if seal := self.seals.get(task):
            # `refresh` replaces these mappings in another thread: each is looked up once.
            if (kept := self._certificates.get(seal)) is not None:
                return kept
            try:
                certificate = self.store.certificate(task)
            except StoreError as error:
                raise Unreadable(task) from error
            while len(self._certificates) >= _MAX_CERTIFICATES:
                del self._certificates[next(iter(self._certificates))]
            self._certificates[certificate.seal] = certificate
            return certificate
        if task in self.forgotten:
            raise Problem(
                410, "forgotten", f"task {task!r} was forgotten on purpose: no bank predicts its rows any more"
            )
        known = known_names(list(self.seals), task)
        raise Problem(404, "unknown_task", f"task {task!r} has not been learned; learned tasks: {known}")

    def taken(self) -> AcceptedRows:
        """Return which rows the learned tasks take; after a change, only the certificates of new tasks are read."""
        seals = self.seals
        if self._together is not None and self._together[0] is seals:
            return self._together[1]
        per_task = list[AcceptedRows]()
        for task, seal in seals.items():
            with suppress(Problem):  # it cannot be read at the moment; a request for the task says so
                own = self._taken.get(seal) or AcceptedRows.by(self.certificate(task))
                self._taken[seal] = own
                per_task.append(own)
        together = AcceptedRows.union(per_task)
        if len(per_task) == len(seals):
            self._together = (seals, together)
        return together

    def entry(self, task: str) -> dict[str, Any]:
        """Return a task's kind, labels, score, size and seal.

        Raises:
            Problem: see `certificate`.
        """
        if (entry := self._entries.get(self.seals.get(task, ""))) is not None:
            return entry
        certificate = self.certificate(task)
        try:
            known = entry_of(self.store, task)
        except StoreError as error:
            raise Unreadable(task) from error
        labels = None if certificate.labels is None else list(certificate.labels)
        own = {"pair": certificate.pair, "routing": ROUTER in certificate.files, "seal": certificate.seal}
        entry = self._entries[certificate.seal] = known | {"labels": labels} | own
        return entry
