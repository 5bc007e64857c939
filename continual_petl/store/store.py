"""The store: an append-only folder of learned banks. JSON and safetensors only; a task is added completely or not at all.

Readers take no lock: while another process writes, they get the state before or after a change, never a mixture. Banks are
added, removed and replaced by renaming whole folders, so a reader can detect a change that was made while it was reading, and
read again. A replacement takes two renames, between which the bank is briefly missing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from continual_petl import _notebook
from continual_petl.errors import InputError, StoreError
from continual_petl.store.certificate import chain
from continual_petl.store.certificate.certificate import HISTORY, ROUTER
from continual_petl.store.certificate.chain import Link
from continual_petl.store.certificate.history import History, read_history
from continual_petl.store.certificate.pinned_backbone import PinnedBackbone, pin_backbone, read_pinned
from continual_petl.store.certificate.tensor_file import certified_tensors, read_tensors
from continual_petl.store.certificate.tombstone import Tombstone
from continual_petl.store.certificate.values import StoredTensor, as_tensors
from continual_petl.store.dependencies import read_banks
from continual_petl.store.files.atomic import make_folder, write_file
from continual_petl.store.files.lock import RunLock
from continual_petl.store.files.reading import Stamp, stamp_of
from continual_petl.store.folder import results_file
from continual_petl.store.folder.bank_folders import MAX_CERTIFICATES, BankFolders, is_name
from continual_petl.store.folder.missing_entries import Missing, missing
from continual_petl.store.folder.recovery import clean
from continual_petl.store.folder.stream_seal import sealed_stream

if TYPE_CHECKING:
    from torch import Tensor

    from continual_petl.backbones.backbone import Backbone
    from continual_petl.banks.bank import Bank
    from continual_petl.learner.task_plan import TaskPlan


_T = TypeVar("_T")
MAX_ROUTER_BYTES = 2**30
"""Size limit for one task's routing statistics, checked before they are read."""
_MAX_LISTED = 5
"""Number of problems that one error lists in full."""


_PATIENCE = 20.0
"""Seconds to wait for the store to stay unchanged during one read."""
_REPLACING = 5.0
"""Seconds after which a bank that is still missing counts as lost, because the process that was replacing it was killed."""


@dataclass(frozen=True)
class _View:
    """The result of a writer's last check of every bank."""

    stamp: tuple[Stamp, Stamp]
    """Signatures of the folders ``banks`` and ``tombstones``; they change when anything in them is added or removed."""
    listed: frozenset[str]
    """Names of bank folders and tombstones."""
    links: list[Link]
    tombstones: list[Tombstone]
    broken: Mapping[str, str]
    missing: list[Missing] | None = None
    """None until it is computed."""


class Store(BankFolders):
    """A run folder. Reading never blocks; writing needs the `lock`.

    A reader that lists all tasks checks every certificate for changes each time. The holder of the lock does so once,
    and again only if another process has added, removed or replaced a bank or tombstone, so the cost of a task does not
    grow with the number of tasks before it.

    Args:
        folder: the run folder, created when something is first written.
        max_certificates: number of certificates to keep in memory, besides those that cached banks or other objects hold.
        indexed: whether the index may be used; see `continual_petl.store.folder.index`.
    """

    def __init__(self, folder: Path, *, max_certificates: int = MAX_CERTIFICATES, indexed: bool = True) -> None:
        super().__init__(folder, max_certificates=max_certificates, indexed=indexed)
        self._taken: tuple[list[Link], list[Tombstone], list[results_file.Line]] | None = None
        self._taken_tasks: frozenset[str] = frozenset()
        self._num_holds = 0
        self._view: _View | None = None

    def __repr__(self) -> str:
        return f"Store({str(self.folder)!r}, tasks: {_notebook.names(lambda: self.tasks)})"

    @property
    def tasks(self) -> list[str]:
        """Learned tasks, in the order they were learned.

        Raises:
            StoreError: if a certificate cannot be read.
        """
        return [link.task for link in self.links()]

    def links(self) -> list[Link]:
        """Return the links of the learned tasks, in the order they were learned, without the links of tombstones.

        Raises:
            StoreError: if a certificate or tombstone cannot be read.
        """
        if self._taken is not None:
            return self._taken[0]
        return self._viewed().links if self._num_holds else self.consistently(self.live)

    def has(self, task: str) -> bool:
        """Return whether a task is learned, without reading any other task.

        Raises:
            StoreError: if its certificate, or a tombstone, cannot be read.
        """
        if self._taken is not None:
            return task in self._taken_tasks
        return is_name(task) and self.consistently(lambda: self.counts(task), task)

    def tombstones(self) -> list[Tombstone]:
        """Return the tombstones in effect, in chain order."""
        if self._taken is not None:
            return self._taken[1]
        return self._viewed().tombstones if self._num_holds else self.counting()

    def broken(self) -> Mapping[str, str]:
        """Return one problem for each task whose certificate or tombstone does not continue the chain; normally empty."""
        return self._viewed().broken if self._num_holds and self._taken is None else chain.broken(self.chain())

    def missing(self) -> list[Missing]:
        """Return the entries that the chain or ``results.jsonl`` names but that are not in the folder."""
        if not self._num_holds or self._taken is not None:
            return self.consistently(self._missing)
        view = self._viewed()
        if view.missing is None:
            view = self._view = replace(view, missing=self._missing())
        return view.missing or []

    def _missing(self) -> list[Missing]:
        # Read the results first, so that they cannot name a task that is committed in the meantime.
        lines = self.results() if self._taken is not None else results_file.read_without_cells(self.results_file)
        return missing(self.chain(), self.tombstones(), lines)

    def problems(self) -> list[str]:
        """Describe what is wrong with the chain and what is missing from it, in one paragraph per problem."""
        return [*self.broken().values(), *(entry.message(self.folder) for entry in self.missing())]

    def check_complete(self) -> None:
        """Raise `StoreError` if the chain is broken, or if anything that it or ``results.jsonl`` names is missing.

        The holder of the lock checks this once, and again only if other processes have added or removed something.
        """
        if problems := self.problems():
            more = f" (and {len(problems) - _MAX_LISTED} more: `continual-petl verify` lists them)"
            listed = " ".join(f"{problem.rstrip('.')}." for problem in problems[:_MAX_LISTED])
            raise StoreError(listed + (more if len(problems) > _MAX_LISTED else ""))

    def _viewed(self) -> _View:
        stamp = self.stamp()
        if self._view is None or self._view.stamp != stamp:
            links, stones = self.consistently(lambda: (self.live(), self.counting()))
            all_links = chain.whole(links, stones)
            self._view = _View(stamp, self._listed(), links, stones, chain.broken(all_links))
        return self._view

    def _listed(self) -> frozenset[str]:
        """Return the names of all bank folders and tombstones, which is cheap even if there are many."""
        return frozenset(self.names()).union(path.name for path in self.tombstone_files())

    def stamp(self) -> tuple[Stamp, Stamp]:
        """Return a value that changes whenever a bank or tombstone is added, replaced or removed."""
        return stamp_of(self.banks), stamp_of(self.tombstone_folder)

    def joined(self, task: str) -> None:
        """Update the caches after a bank was committed, at the end of the chain or in the place of another bank."""
        view, self._view = self._view, None
        self.note(task)
        link = self.link(task)
        if view is not None and not view.broken:
            newest = chain.head([*view.links[-1:], *chain.whole((), view.tombstones[-1:])])
            follows = newest is not None and (link.index, link.predecessor) == (newest.index + 1, newest.seal)
            # In any other case, another process may have changed something since the last check, so the view is dropped.
            if follows and self._listed() == view.listed | {task}:
                self._view = replace(view, stamp=self.stamp(), listed=self._listed(), links=[*view.links, link])

    def _reread(self, task: str) -> None:
        self._view = None

    def snapshot(self) -> Store:
        """Return an unchanging copy of the store, for callers that read it several times while a run may continue."""
        taken = Store(self.folder, max_certificates=self._max_certificates)
        taken._certificates, taken._entries = self._certificates.copy(), self._entries.copy()
        # `copy` could fail here if another thread reads a certificate meanwhile.
        taken._in_use.update(
            {certificate.task: certificate for reference in self._in_use.valuerefs() if (certificate := reference())}
        )
        taken._taken = taken.consistently(lambda: (taken.links(), taken.tombstones(), taken.results()))
        taken._taken_tasks = frozenset(link.task for link in taken._taken[0])
        return taken

    def consistently(self, read: Callable[[], _T], task: str | None = None) -> _T:
        """Return the result of ``read`` on an unchanging store; see `consistently`."""
        return consistently(self, read, task)

    @contextmanager
    def lock(self, *, wait: bool = False) -> Iterator[None]:
        """Lock the run folder for writing; if another process holds the lock, wait or raise `RunInUseError`."""
        make_folder(self.folder)
        with RunLock(self.folder, wait=wait):
            self._num_holds, self._view = self._num_holds + 1, None
            try:
                yield
            finally:
                self._num_holds, self._view = self._num_holds - 1, None

    def tensors(self, task: str) -> dict[str, Tensor]:
        """Return a bank's stored tensors, each checked against its digest in the certificate.

        Raises:
            StoreError: naming the first tensor that is missing, unexpected or changed.
        """
        return as_tensors(self.stored_tensors(task))

    def stored_tensors(self, task: str) -> dict[str, StoredTensor]:
        """Return a bank's tensors as stored in the file, without importing torch."""
        return certified_tensors(self.bank_folder(task) / "bank.safetensors", self.certificate(task))

    def history(self, task: str) -> History:
        """Return a task's learning curves and a summary of its bank's predictions.

        Raises:
            StoreError: if the history file is not the one that was certified.
        """
        return self.consistently(lambda: read_history(self.bank_folder(task) / HISTORY, self.certificate(task)), task)

    def router_sums(self, task: str) -> dict[str, StoredTensor] | None:
        """Return the routing statistics that a task stored; None for a task with ``routing: off``.

        Raises:
            StoreError: if they are not those that were certified.
        """
        certificate = self.certificate(task)
        if ROUTER not in certificate.files:
            return None
        path = self.bank_folder(task) / ROUTER
        return read_tensors(path, MAX_ROUTER_BYTES, certificate.files[ROUTER], f"task {task!r}")

    def plan(self, task: str) -> TaskPlan:
        """Return the plan that a task was learned with."""
        return self.certificate(task)

    def load_bank(self, task: str, backbone: Backbone, *, run: Store | None = None) -> Bank:
        """Return a learned bank, checked strictly: the same backbone, and exactly the certified tensors.

        Args:
            task: a learned task.
            backbone: the backbone it was learned on.
            run: the store with the banks that a fused bank reads; None means this store.

        Raises:
            StoreError: if the bank belongs to another backbone, was changed, or does not match its specification, or if
                a bank that it reads is missing or is not the one that was certified.
        """
        return self.consistently(lambda: self._load(task, backbone, run or self), task)

    def _load(self, task: str, backbone: Backbone, run: Store) -> Bank:
        from continual_petl.store.strict_load import check_fits, filled_bank  # imports torch

        certificate = self.certificate(task)
        if certificate.backbone != backbone.digest:
            raise StoreError(
                f"task {task!r} was learned on a backbone with digest {certificate.backbone[:12]}, but {backbone.name!r} has "
                f"{backbone.digest[:12]}. A bank predicts only on the backbone it was learned on: use that one."
            )
        check_fits(certificate, backbone, certificate.tensors)
        bank = filled_bank(certificate, backbone, self.tensors(task))
        bank.read(read_banks(run, certificate, certificate.reads))
        return bank

    def clean(self) -> None:
        """Clean up after a killed process. The lock must be held, so nobody else is writing."""
        try:
            clean(self)
        finally:
            self._view = None

    def head(self) -> Link | None:
        """Return the newest entry of the chain: a certificate or a tombstone. Its certificate is always read."""
        newest = chain.head(self.chain())
        if newest is not None and not newest.tombstone and self._taken is None:
            self.certificate(newest.task)
            return newest if self.link(newest.task) == newest else chain.head(self.chain())
        return newest

    def chain(self) -> list[Link]:
        """Return all links of the chain: of learned tasks, of tombstones, and of the entries that tombstones replace."""
        return chain.whole(self.links(), self.tombstones())

    def results(self) -> list[results_file.Line]:
        """Return every committed line of results.jsonl, oldest first."""
        if self._taken is not None:
            return self._taken[2]
        return results_file.read_results(self.results_file)

    def append_results(self, lines: Sequence[results_file.Line]) -> None:
        """Append lines to results.jsonl, flushed to disk."""
        results_file.append_results(self.results_file, lines)

    def write_stream(self, text: str) -> None:
        """Write the resolved stream, sealed."""
        write_file(self.stream_file, sealed_stream(text))

    def write_backbone(self, backbone: Backbone) -> None:
        """Pin the backbone; raise `StoreError` if the run already has another one."""
        pin_backbone(self.pin_file, backbone)

    def pinned(self) -> PinnedBackbone | None:
        """Return the content of backbone.json; None if it has not been written yet."""
        return read_pinned(self.pin_file)


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
            result = read()
        except (InputError, StoreError):
            if _state(store, task) == before and not _replacing(store, task):
                raise
        else:
            if _state(store, task) == before:
                return result
    raise StoreError(f"{store.folder}: tasks are added and removed faster than they can be read; try again later.")


def _state(store: BankFolders, task: str | None) -> object:
    """Return a value that changes whenever a bank is added or removed: folders are renamed, never filled in place."""
    if task is not None:
        return stamp_of(store.bank_folder(task))[0]
    try:
        with os.scandir(store.banks) as scan:
            banks = {entry.name: entry.inode() for entry in scan if not entry.name.startswith(".")}
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
    if not files or abs(time.time() - stamp_of(files[-1])[1] / 1e9) > _REPLACING:
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
