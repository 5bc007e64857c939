"""The store: an append-only folder of learned banks. JSON and safetensors only; a task is added completely or not at all.

``ledger.jsonl`` says what happened to the run; each bank is a folder in ``banks`` that never changes once it is there. A bank
is committed when its folder appears, complete, at the next position of the chain; its line in the ledger follows. If a
process is killed in between, readers count the bank anyway, and the next writer adds the line.

Readers take no lock. Whatever they read is a prefix of the ledger, so they get the state before or after a change, never a
mixture; if a bank is dropped while they read it, they read again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from continual_petl import _notebook
from continual_petl.errors import InputError, StoreError, quoted
from continual_petl.store.certificate.certificate import HISTORY, ROUTER, Certificate
from continual_petl.store.certificate.history import History, read_history
from continual_petl.store.certificate.pinned_backbone import PinnedBackbone, pin_backbone, read_pinned
from continual_petl.store.certificate.tensor_file import certified_tensors, read_tensors
from continual_petl.store.certificate.values import StoredTensor, as_tensors
from continual_petl.store.dependencies import read_banks
from continual_petl.store.files.atomic import (
    append_whole,
    explain_refusals,
    make_folder,
    remove_folder,
    remove_unfinished,
    write_file,
)
from continual_petl.store.files.lock import RunLock
from continual_petl.store.files.reading import MAX_JSON_BYTES, Stamp, read_file, refuse_link, stamp_of
from continual_petl.store.folder.run_folder import RunFolder, is_name
from continual_petl.store.folder.stream_seal import sealed_stream
from continual_petl.store.folder_reader import PATIENCE, UNTIL, FolderReader, Stamps, State
from continual_petl.store.ledger.entries import Tombstone
from continual_petl.store.ledger.ledger_file import read_ledger, sealed_lines
from continual_petl.store.ledger.lines import (
    CommitLine,
    Entry,
    FinishedLine,
    Line,
    Result,
    RowLine,
    SignatureLine,
)

if TYPE_CHECKING:
    from torch import Tensor

    from continual_petl.backbones.backbone import Backbone
    from continual_petl.banks.bank import Bank
    from continual_petl.learner.task_plan import TaskPlan


_T = TypeVar("_T")
MAX_CERTIFICATES = 64
MAX_ROUTER_BYTES = 2**30
"""Size limit for one task's routing statistics, checked before they are read."""
_MAX_LISTED = 5
"""Number of problems that one error lists in full."""


class Store(RunFolder):
    """A run folder. Reading never blocks; writing needs the `lock`.

    Args:
        folder: the run folder, created when something is first written.
        max_certificates: number of certificates to keep in memory.
    """

    def __init__(self, folder: Path, *, max_certificates: int = MAX_CERTIFICATES) -> None:
        super().__init__(folder)
        self._reader = FolderReader(folder, max_certificates)
        self._checked: dict[str, tuple[Stamp, str]] = {}
        self._in_order: dict[str, tuple[int, str]] = {}
        """What `problems` found in order while this process holds the lock: folder and seal of each task."""
        self._num_holds = 0
        self._taken: State | None = None

    def __repr__(self) -> str:
        return f"Store({str(self.folder)!r}, tasks: {_notebook.names(lambda: self.tasks)})"

    def state(self) -> State:
        """Return what the folder holds; what has not changed is not read again.

        Raises:
            StoreError: if the ledger is damaged, or ``banks`` is not a folder.
        """
        return self._taken or self._reader.state()

    def survey(self) -> State:
        """Return what can be read of a folder that may be damaged; everything is read again."""
        return self._reader.survey()

    def stamps(self) -> Stamps:
        """Return a value that changes whenever a line or a bank is added, or a bank is removed."""
        return self._reader.stamps()

    @property
    def tasks(self) -> list[str]:
        """Learned tasks, in the order they were learned."""
        return [*self.state().commits]

    def commits(self) -> list[CommitLine]:
        """Return the commits of the learned tasks, in the order they were learned."""
        return [*self.state().commits.values()]

    def has(self, task: str) -> bool:
        """Return whether a task is learned."""
        return is_name(task) and task in self.state().commits

    def commit(self, task: str) -> CommitLine:
        """Return the commit of a learned task.

        Raises:
            StoreError: if it is not learned.
        """
        state = self.state()
        if task in state.missing:
            raise StoreError(self._lost(state.missing[task]))
        if task not in state.commits:
            raise StoreError(
                f"task {task!r}: {self.banks / task} is missing; the task was never learned in this run, or was forgotten"
            )
        return state.commits[task]

    def tombstones(self) -> list[Tombstone]:
        """Return what was dropped from the run, in the order of the chain."""
        return self.state().entries.tombstones

    def head(self) -> Entry | None:
        """Return the newest entry of the chain."""
        return self.state().entries.head

    def chain(self) -> list[Entry]:
        """Return all entries of the chain."""
        return self.state().entries.chain

    def signature(self) -> SignatureLine | None:
        """Return the newest signature, if any."""
        return self.state().entries.signature

    def bank_folder(self, task: str) -> Path:
        """Return the path of a task's bank."""
        commit = self.state().commits.get(task)
        return self.banks / (task if commit is None else commit.folder)

    def routing_bytes(self, task: str) -> int:
        """Return the size on disk of a task's routing statistics, which is part of its `bytes`; 0 if it stored none."""
        return stamp_of(self.bank_folder(task) / ROUTER)[2]

    def certificate(self, task: str) -> Certificate:
        """Return a learned task's certificate.

        Raises:
            StoreError: if it is missing, damaged, or not the one that the ledger names.
        """
        return self.consistently(lambda: self._certificate_of(self.commit(task)), task)

    def _certificate_of(self, commit: CommitLine) -> Certificate:
        certificate = self._reader.certificate_in(commit.folder)
        if not commit.says_the_same(certificate):
            raise StoreError(
                f"task {commit.task!r}: its certificate, entry {commit.index} of the chain, is not the one that "
                f"{self.ledger_file.name} names: its bank.json was edited, or its bank was lost and another one was learned "
                f"in its place. Restore {self.banks / commit.folder} from a copy, or drop the task with "
                f"{self._forget(commit.task)}, after which it can be learned again. {UNTIL}"
            )
        return certificate

    def check_certificate(self, commit: CommitLine) -> None:
        """Raise `StoreError` unless a certificate is the one that the ledger names; its content is not parsed."""
        folder = f"{self.banks}/{commit.folder}"
        file = f"{folder}/bank.json"
        known = stamp_of(file), commit.seal
        if self._checked.get(commit.folder) != known:
            refuse_link(folder)
            same = False
            with suppress(FileNotFoundError):
                same = hashlib.sha256(read_file(Path(file), MAX_JSON_BYTES)).hexdigest() == commit.file
            if not same:
                self._certificate_of(commit)
            self._checked[commit.folder] = known

    def _lost(self, commit: CommitLine) -> str:
        return (
            f"task {commit.task!r} was learned as entry {commit.index} of the chain, but its bank is missing. Restore "
            f"{self.banks / commit.folder} from a copy, or drop it on purpose with {self._forget(commit.task)}. {UNTIL}"
        )

    def _forget(self, task: str) -> str:
        return f"`continual-petl forget {quoted(self.folder)} {quoted(task)}`"

    def missing(self) -> Mapping[str, str]:
        """Return one message for each task that was learned and not dropped, but whose bank is not in the folder."""
        return {task: self._lost(commit) for task, commit in self.state().missing.items()}

    def problems(self) -> Mapping[str, str]:
        """Return one paragraph for each bank that is missing, damaged or not named by the ledger, by task or folder.

        Certificates that have not changed since the last call are not read again. The holder of the lock looks at each of
        them once, and again only if its folder was exchanged, so the cost of a task does not grow with the number of tasks
        before it.
        """
        state = self.state()
        found = {**state.strays, **self.missing()}
        for task, commit in state.commits.items():
            place = state.folders[commit.folder], commit.seal
            if self._in_order.get(task) == place:
                continue
            try:
                self.check_certificate(commit)
            except StoreError as error:
                found[task] = str(error)
            else:
                if self._num_holds:
                    self._in_order[task] = place
        return found

    def check_complete(self) -> None:
        """Raise `StoreError` if a bank that the ledger names is missing or changed, or if there are others."""
        if problems := [*self.problems().values()]:
            more = f" (and {len(problems) - _MAX_LISTED} more: `continual-petl verify` lists them)"
            listed = " ".join(f"{problem.rstrip('.')}." for problem in problems[:_MAX_LISTED])
            raise StoreError(listed + (more if len(problems) > _MAX_LISTED else ""))

    def snapshot(self) -> Store:
        """Return an unchanging view of the store, for callers that read it several times while a run may continue."""
        other = Store(self.folder)
        other._taken, other._reader = self._reader.state(), self._reader  # which keeps certificates in memory
        return other

    def consistently(self, read: Callable[[], _T], task: str | None = None) -> _T:
        """Return the result of ``read`` on an unchanging store; read again if tasks are added or dropped meanwhile.

        Args:
            read: reads from the store, without changing anything.
            task: the task that ``read`` reads; None means all tasks.

        Raises:
            InputError, StoreError: if ``read`` raises it while the store does not change.
            StoreError: if the store keeps changing.
        """
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            before = self._seen(task)
            try:
                result = read()
            except (InputError, StoreError):
                if self._seen(task) == before:
                    raise
            else:
                if self._seen(task) == before:
                    return result
        raise StoreError(f"{self.folder}: tasks are added and removed faster than they can be read; try again later.")

    def _seen(self, task: str | None) -> object:
        try:
            state = self.state()
        except StoreError as error:
            return str(error)
        return state.entries.next if task is None else state.commits.get(task)

    @contextmanager
    def lock(self, *, wait: bool = False) -> Iterator[None]:
        """Lock the run folder for writing; if another process holds the lock, wait or raise `RunInUseError`."""
        make_folder(self.folder)
        with RunLock(self.folder, wait=wait):
            self._num_holds += 1
            try:
                yield
            finally:
                self._num_holds -= 1
                if not self._num_holds:
                    self._in_order.clear()

    def append(self, lines: Sequence[Line]) -> None:
        """Append lines to the ledger, flushed to disk, after those that follow from the folder. The lock must be held.

        Raises:
            StoreError: if a line does not continue the chain, the folder is damaged, or writing fails; the ledger is then
                unchanged.
        """
        state = self.state()
        if state.wrong:
            raise StoreError(" ".join(state.wrong.values()))
        mark, new = self._reader.in_ledger.mark, [*state.unwritten, *lines]
        after = state.entries.copy()
        for line in lines:
            after.add(line, str(self.ledger_file))
        if not new and stamp_of(self.ledger_file)[2] == mark.offset:  # otherwise, it ends in a torn line
            return
        content, _ = sealed_lines(new, mark)
        if mark.number:
            append_whole(self.ledger_file, content)
        else:  # a new file appears with all of its lines, or not at all
            make_folder(self.folder)
            write_file(self.ledger_file, content)

    def clean(self) -> None:
        """Finish what a killed process began, and remove what it left. The lock must be held, so nobody else is writing."""
        with explain_refusals(self.banks):
            self.append(())
            for name in self.state().dropped:
                remove_folder(self.banks / name)
            progress = self.folder / ".progress"
            for folder in (self.banks, progress, *progress.glob("[!.]*")):
                if not (folder.is_symlink() or folder.parent.is_symlink()):
                    remove_unfinished(folder, links=False)

    def each_result(self) -> Iterator[Result]:
        """Yield the rows of R and finished tasks one by one, oldest first, since the rows of a long run take much memory.

        Raises:
            StoreError: naming the first damaged line.
        """
        state = self.state()
        if state.results is not None:
            yield from state.results
        elif state.entries.mark.number:
            for sealed in read_ledger(self.ledger_file, end=state.entries.mark):
                if sealed.type in ("row", "finished"):
                    line = sealed.parsed()
                    assert isinstance(line, RowLine | FinishedLine)
                    yield line

    def results(self) -> list[Result]:
        """Return the rows of R and finished tasks, oldest first."""
        return list(self.each_result())

    def results_without_cells(self) -> Iterable[Result]:
        """Yield the results, but without the cells of the rows, to save memory."""
        for line in self.each_result():
            yield line.model_copy(update={"cells": ()}) if isinstance(line, RowLine) else line

    def tensors(self, task: str) -> dict[str, Tensor]:
        """Return a bank's stored tensors, each checked against its digest in the certificate.

        Raises:
            StoreError: naming the first tensor that is missing, unexpected or changed.
        """
        return as_tensors(self.stored_tensors(task))

    def stored_tensors(self, task: str) -> dict[str, StoredTensor]:
        """Return a bank's tensors as stored in the file, without importing torch."""
        return certified_tensors(self.bank_folder(task) / "bank.safetensors", self.certificate(task))

    def probe_file(self, task: str) -> Path:
        """Return the path of a bank's probe."""
        return self.bank_folder(task) / "probe.safetensors"

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

    def write_stream(self, text: str) -> None:
        """Write the resolved stream, sealed."""
        write_file(self.stream_file, sealed_stream(text))

    def write_backbone(self, backbone: Backbone) -> None:
        """Pin the backbone; raise `StoreError` if the run already has another one."""
        pin_backbone(self.pin_file, backbone)

    def pinned(self) -> PinnedBackbone | None:
        """Return the content of backbone.json; None if it has not been written yet."""
        return read_pinned(self.pin_file)
