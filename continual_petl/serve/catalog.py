"""The learned tasks of a run folder, as of the last call of `refresh`, which costs two system calls if nothing has
changed.
"""

from __future__ import annotations

import threading
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
        self._entries: dict[str, tuple[str, dict[str, Any]]] = {}
        self._taken: dict[str, tuple[str, AcceptedRows]] = {}
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
            kept = self._certificates.copy().items()
            self._certificates = {
                task: certificate for task, certificate in kept if certificate.seal == seals.get(task)
            }
            self._entries = {task: entry for task, entry in self._entries.copy().items() if task in seals}
            self._taken = {task: taken for task, taken in self._taken.copy().items() if task in seals}
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
        seal, certificate = self.seals.get(task), self._certificates.get(task)
        if certificate is not None and certificate.seal == seal:
            return certificate
        if seal is not None:
            try:
                certificate = self.store.certificate(task)
            except StoreError as error:
                raise Unreadable(task) from error
            while len(self._certificates) >= _MAX_CERTIFICATES:
                del self._certificates[next(iter(self._certificates))]
            self._certificates[task] = certificate
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
        known, per_task = self._taken, list[AcceptedRows]()
        for task, seal in seals.items():
            if (own := known.get(task)) is None or own[0] != seal:
                try:
                    own = known[task] = (seal, AcceptedRows.by(self.certificate(task)))
                except Problem:  # it cannot be read at the moment; a request for the task says so
                    continue
            per_task.append(own[1])
        together = AcceptedRows.union(per_task)
        if len(per_task) == len(seals):
            self._together = (seals, together)
        return together

    def entry(self, task: str) -> dict[str, Any]:
        """Return a task's kind, labels, score, size and seal.

        Raises:
            Problem: see `certificate`.
        """
        seal, entry = self._entries.get(task, ("", {}))
        if seal != self.seals.get(task):
            certificate = self.certificate(task)
            try:
                known = entry_of(self.store, task)
            except StoreError as error:
                raise Unreadable(task) from error
            entry = known | {
                "labels": None if certificate.labels is None else list(certificate.labels),
                "pair": certificate.pair,
                "routing": ROUTER in certificate.files,
                "seal": certificate.seal,
            }
            self._entries[task] = (certificate.seal, entry)
        return entry
