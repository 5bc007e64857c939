"""The store: an append-only folder of learned banks. JSON and safetensors only; a task is there whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, TypeVar

from torch import Tensor

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.errors import StoreError
from continual_petl.learner.plan import TaskPlan
from continual_petl.store import chain, results_file
from continual_petl.store.atomic import make_folder, write_file
from continual_petl.store.chain import Link
from continual_petl.store.fill import fitting_bank
from continual_petl.store.leftovers import clean
from continual_petl.store.lock import RunLock
from continual_petl.store.pin import Pin, pin_backbone, read_pin
from continual_petl.store.shelf import MOST_MANIFESTS, Shelf
from continual_petl.store.steady import steadily
from continual_petl.store.tensor_file import certified_tensors
from continual_petl.store.tombstone import Removed, Tombstone, write_tombstone

_T = TypeVar("_T")


class Store(Shelf):
    """A run folder. Reading never blocks; writing wants the `lock`.

    Args:
        folder: the run folder, created when something is first written.
        most_manifests: how many manifests are kept in memory.
    """

    def __init__(self, folder: Path, *, most_manifests: int = MOST_MANIFESTS) -> None:
        super().__init__(folder, most_manifests=most_manifests)
        self.stream_file = folder / "stream.yaml"
        self.results_file = folder / "results.jsonl"
        self.pin_file = folder / "backbone.json"
        self._taken: tuple[list[Link], list[Tombstone], list[results_file.Line]] | None = None

    def __repr__(self) -> str:
        return f"Store({str(self.folder)!r}, tasks: {', '.join(self.tasks) or 'none'})"

    @property
    def tasks(self) -> list[str]:
        """Learned tasks in the order of learning.

        Raises:
            StoreError: if a certificate cannot be read.
        """
        return [link.task for link in self.links()]

    def links(self) -> list[Link]:
        """Return the links of the learned tasks, in the order of learning; those of tombstones are not among them.

        Raises:
            StoreError: if a certificate or tombstone cannot be read.
        """
        if self._taken is not None:
            return self._taken[0]
        return self.steadily(self.live)

    def tombstones(self) -> list[Tombstone]:
        """Return the tombstones that count, in the order of the chain."""
        if self._taken is not None:
            return self._taken[1]
        return self.counting()

    def snapshot(self) -> Store:
        """Return the store as it is now, for readers that look several times while a course may go on."""
        taken = Store(self.folder)
        taken._manifests, taken._links = self._manifests.copy(), self._links.copy()
        taken._taken = taken.steadily(lambda: (taken.links(), taken.tombstones(), taken.results()))
        return taken

    def steadily(self, read: Callable[[], _T], task: str | None = None) -> _T:
        """Return what a function reads of the store at rest; see `continual_petl.store.steady`."""
        return steadily(self, read, task)

    def lock(self, *, wait: bool = False) -> AbstractContextManager[Any]:
        """Hold the run folder for writing; another process that already does is waited for, or a `StoreError`."""
        make_folder(self.folder)
        return RunLock(self.folder, wait=wait)

    def tensors(self, task: str) -> dict[str, Tensor]:
        """Return a bank's stored tensors, each checked against its digest in the manifest.

        Raises:
            StoreError: naming the first tensor that is missing, unexpected or changed.
        """
        return certified_tensors(self.bank_folder(task) / "bank.safetensors", self.manifest(task))

    def plan(self, task: str) -> TaskPlan:
        """Return what the learner knew of a learned task."""
        return self.manifest(task).plan()

    def load_bank(self, task: str, backbone: Backbone) -> Bank:
        """Return a learned bank, strictly: same backbone, every tensor with its shape and digest, nothing else.

        Raises:
            StoreError: if the bank is of another backbone, was changed, or does not fit its specification.
        """
        return self.steadily(lambda: self._load(task, backbone), task)

    def _load(self, task: str, backbone: Backbone) -> Bank:
        manifest = self.manifest(task)
        if manifest.backbone != backbone.digest:
            raise StoreError(
                f"task {task!r} was learned on a backbone with digest {manifest.backbone[:12]}, but {backbone.name!r} has "
                f"{backbone.digest[:12]}. A bank answers only on the backbone it was learned on: give that one."
            )
        return fitting_bank(self.plan(task), backbone, manifest.tensors, lambda: self.tensors(task))

    def forget(self, task: str) -> Tombstone:
        """Drop a learned task: its tombstone joins the chain, then its folder goes. No other task is touched."""
        tombstone, progress = self.next_tombstone(task, "forgotten"), self.progress_folder(task)
        write_tombstone(self.tombstone_folder, tombstone)
        self.clean()
        shutil.rmtree(progress, ignore_errors=True)
        return tombstone

    def next_tombstone(self, task: str, why: Literal["forgotten", "replaced"]) -> Tombstone:
        """Return the tombstone that would take a task's place, as the next entry of the chain."""
        link, newest = self.link(task), self.head()
        assert newest is not None
        removed = Removed(index=link.index, seal=link.seal, predecessor=link.predecessor)
        return Tombstone(index=newest.index + 1, predecessor=newest.seal, task=task, why=why, removed=removed)

    def clean(self) -> None:
        """Take away, or back, what only a kill leaves behind. Wants the lock: nobody else is writing then."""
        clean(self)

    def head(self) -> Link | None:
        """Return the newest entry of the chain: a certificate or a tombstone."""
        return chain.head(self.chain())

    def chain(self) -> list[Link]:
        """Return all links of the chain: of learned tasks, of tombstones, and of what these stand for."""
        return self.links() + [link for tombstone in self.tombstones() for link in chain.links_of(tombstone)]

    def results(self) -> list[results_file.Line]:
        """Return every committed line of results.jsonl, oldest first."""
        if self._taken is not None:
            return self._taken[2]
        return results_file.read_results(self.results_file)

    def append_results(self, lines: Sequence[results_file.Line]) -> None:
        """Append lines to results.jsonl, flushed to disk."""
        results_file.append_results(self.results_file, lines)

    def write_stream(self, text: str) -> None:
        """Write the resolved stream."""
        write_file(self.stream_file, text.encode())

    def write_backbone(self, backbone: Backbone) -> None:
        """Pin the backbone; another one than the run already has is a `StoreError`."""
        pin_backbone(self.pin_file, backbone)

    def pin(self) -> Pin | None:
        """Return what backbone.json says, or None before the first run."""
        return read_pin(self.pin_file)
