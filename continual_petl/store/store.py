"""The store: an append-only folder of learned banks. JSON and safetensors only; a task is there whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from continual_petl import _notebook
from continual_petl.errors import StoreError
from continual_petl.store import chain, results_file
from continual_petl.store.atomic import make_folder, write_file
from continual_petl.store.chain import Link
from continual_petl.store.files import Signature, signature_of
from continual_petl.store.history import History, read_history
from continual_petl.store.leftovers import clean
from continual_petl.store.lock import RunLock
from continual_petl.store.missing import Missing, missing
from continual_petl.store.pin import Pin, pin_backbone, read_pin
from continual_petl.store.shelf import MOST_MANIFESTS, Shelf, is_name
from continual_petl.store.steady import steadily
from continual_petl.store.stream_seal import sealed_stream
from continual_petl.store.tombstone import Tombstone

if TYPE_CHECKING:
    from torch import Tensor

    from continual_petl.backbones.backbone import Backbone
    from continual_petl.banks.bank import Bank
    from continual_petl.learner.plan import TaskPlan

_T = TypeVar("_T")
_MOST = 5
"""Problems that one error tells in full."""


@dataclass(frozen=True)
class _View:
    """What a writer found when it last looked at every bank."""

    stamp: tuple[Signature, Signature]
    """Of the folders of banks and tombstones: another one as soon as anything is put there, replaced or taken away."""
    listed: frozenset[str]
    """Names of bank folders and tombstones."""
    links: list[Link]
    tombstones: list[Tombstone]
    broken: Mapping[str, str]
    missing: list[Missing] | None = None
    """None if nobody has asked yet."""


class Store(Shelf):
    """A run folder. Reading never blocks; writing wants the `lock`.

    Who reads looks at every manifest's place each time that all tasks are asked for. Who holds the lock does so once, and
    again when a bank or tombstone came, went or was replaced by somebody else: what a task costs does not grow with the
    number of tasks before it.

    Args:
        folder: the run folder, created when something is first written.
        most_manifests: how many manifests are kept in memory.
        indexed: whether the index may save reading; see `continual_petl.store.index`.
    """

    def __init__(self, folder: Path, *, most_manifests: int = MOST_MANIFESTS, indexed: bool = True) -> None:
        super().__init__(folder, most_manifests=most_manifests, indexed=indexed)
        self._taken: tuple[list[Link], list[Tombstone], list[results_file.Line]] | None = None
        self._num_holds = 0
        self._view: _View | None = None

    def __repr__(self) -> str:
        return f"Store({str(self.folder)!r}, tasks: {_notebook.names(lambda: self.tasks)})"

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
        return self._viewed().links if self._num_holds else self.steadily(self.live)

    def has(self, task: str) -> bool:
        """Return whether a task is learned, without a look at any other task.

        Raises:
            StoreError: if its certificate, or a tombstone, cannot be read.
        """
        if self._taken is not None:
            return task in self.tasks
        return is_name(task) and self.steadily(lambda: self.counts(task), task)

    def tombstones(self) -> list[Tombstone]:
        """Return the tombstones that count, in the order of the chain."""
        if self._taken is not None:
            return self._taken[1]
        return self._viewed().tombstones if self._num_holds else self.counting()

    def broken(self) -> Mapping[str, str]:
        """Return one problem for each task whose certificate or tombstone does not continue the chain; at best nothing."""
        return self._viewed().broken if self._num_holds and self._taken is None else chain.broken(self.chain())

    def missing(self) -> list[Missing]:
        """Return the entries that the chain or ``results.jsonl`` knows of, and that are not in the folder."""
        if not self._num_holds or self._taken is not None:
            return self.steadily(self._missing)
        view = self._viewed()
        if view.missing is None:
            view = self._view = replace(view, missing=self._missing())
        return view.missing or []

    def _missing(self) -> list[Missing]:
        # First: of a task that is committed meanwhile they know nothing yet.
        lines = self.results() if self._taken is not None else results_file.read_without_cells(self.results_file)
        return missing(self.chain(), self.tombstones(), lines)

    def problems(self) -> list[str]:
        """Return what is wrong with the chain and what is missing of it, one paragraph each."""
        return [*self.broken().values(), *(entry.message(self.folder) for entry in self.missing())]

    def check_complete(self) -> None:
        """Raise `StoreError` if the chain is broken, or if anything is missing that it or ``results.jsonl`` knows of.

        Who holds the lock pays for it once, and again only if something was put into the run, or taken away, by others.
        """
        if problems := self.problems():
            more = f" (and {len(problems) - _MOST} more: `continual-petl verify` lists them)"
            told = " ".join(f"{problem.rstrip('.')}." for problem in problems[:_MOST])
            raise StoreError(told + (more if len(problems) > _MOST else ""))

    def _viewed(self) -> _View:
        stamp = self._stamp()
        if self._view is None or self._view.stamp != stamp:
            links, stones = self.steadily(lambda: (self.live(), self.counting()))
            all_links = chain.whole(links, stones)
            self._view = _View(stamp, self._listed(), links, stones, chain.broken(all_links))
        return self._view

    def _listed(self) -> frozenset[str]:
        """Return the names of bank folders and tombstones, which costs little however many there are."""
        return frozenset(self.names()).union(path.name for path in self.tombstone_files())

    def _stamp(self) -> tuple[Signature, Signature]:
        return signature_of(self.banks), signature_of(self.tombstone_folder)

    def joined(self, task: str) -> None:
        """Take note of a bank that was committed a moment ago, at the end of the chain or in another one's place."""
        view, self._view = self._view, None
        self.note(task)
        link = self.link(task)
        if view is not None and not view.broken:
            newest = chain.head([*view.links[-1:], *chain.whole((), view.tombstones[-1:])])
            follows = newest is not None and (link.index, link.predecessor) == (newest.index + 1, newest.seal)
            # What others took away since the last look, right before this commit, would count as seen.
            if follows and self._listed() == view.listed | {task}:
                self._view = replace(view, stamp=self._stamp(), listed=self._listed(), links=[*view.links, link])

    def _reread(self, task: str) -> None:
        self._view = None

    def snapshot(self) -> Store:
        """Return the store as it is now, for readers that look several times while a course may go on."""
        taken = Store(self.folder)
        taken._manifests, taken._entries = self._manifests.copy(), self._entries.copy()
        taken._taken = taken.steadily(lambda: (taken.links(), taken.tombstones(), taken.results()))
        return taken

    def steadily(self, read: Callable[[], _T], task: str | None = None) -> _T:
        """Return what a function reads of the store at rest; see `continual_petl.store.steady`."""
        return steadily(self, read, task)

    @contextmanager
    def lock(self, *, wait: bool = False) -> Iterator[None]:
        """Hold the run folder for writing; another process that already does is waited for, or a `StoreError`."""
        make_folder(self.folder)
        with RunLock(self.folder, wait=wait):
            self._num_holds, self._view = self._num_holds + 1, None
            try:
                yield
            finally:
                self._num_holds, self._view = self._num_holds - 1, None

    def tensors(self, task: str) -> dict[str, Tensor]:
        """Return a bank's stored tensors, each checked against its digest in the manifest.

        Raises:
            StoreError: naming the first tensor that is missing, unexpected or changed.
        """
        from continual_petl.store.tensor_file import certified_tensors  # with torch

        return certified_tensors(self.bank_folder(task) / "bank.safetensors", self.manifest(task))

    def history(self, task: str) -> History | None:
        """Return how a task was learned, and what its bank answered; None for one of an older release.

        Raises:
            StoreError: if it is not the one that was certified.
        """
        return self.steadily(lambda: read_history(self.history_file(task), self.manifest(task)), task)

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
        from continual_petl.store.fill import fitting_bank  # with torch

        manifest = self.manifest(task)
        if manifest.backbone != backbone.digest:
            raise StoreError(
                f"task {task!r} was learned on a backbone with digest {manifest.backbone[:12]}, but {backbone.name!r} has "
                f"{backbone.digest[:12]}. A bank answers only on the backbone it was learned on: give that one."
            )
        return fitting_bank(self.plan(task), backbone, manifest.tensors, lambda: self.tensors(task))

    def clean(self) -> None:
        """Take away, or back, what only a kill leaves behind. Wants the lock: nobody else is writing then."""
        try:
            clean(self)
        finally:
            self._view = None

    def head(self) -> Link | None:
        """Return the newest entry of the chain: a certificate or a tombstone. What the index says of it is read again."""
        newest = chain.head(self.chain())
        if newest is not None and not newest.tombstone and self._taken is None:
            self.manifest(newest.task)
            return newest if self.link(newest.task) == newest else chain.head(self.chain())
        return newest

    def chain(self) -> list[Link]:
        """Return all links of the chain: of learned tasks, of tombstones, and of what these stand for."""
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
        """Pin the backbone; another one than the run already has is a `StoreError`."""
        pin_backbone(self.pin_file, backbone)

    def pin(self) -> Pin | None:
        """Return what backbone.json says, or None before the first run."""
        return read_pin(self.pin_file)
