"""What a run folder holds at one moment: the ledger, and the bank folders that it does and does not name.

A bank is committed when its folder appears, complete, at the next position of the chain. Its line in the ledger follows;
until then, and if the ledger has lost its newest lines, its certificate says where it belongs.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from continual_petl.errors import StoreError
from continual_petl.store.certificate.certificate import Certificate, read_certificate
from continual_petl.store.files.reading import MAX_JSON_BYTES, Stamp, entries, inodes, read_file, refuse_link, stamp_of
from continual_petl.store.folder.format_2 import is_format_2, lines_of
from continual_petl.store.folder.run_folder import RunFolder
from continual_petl.store.ledger.entries import Entries
from continual_petl.store.ledger.ledger_file import is_at, read_ledger
from continual_petl.store.ledger.lines import CommitLine, FinishedLine, Line, Result, RowLine, commit_of

PATIENCE = 20.0
"""Seconds to wait for the store to stay unchanged during one read."""
UNTIL = "Until this is fixed, no task can be learned in this run"
Stamps = tuple[Stamp, Stamp]


@dataclass(frozen=True)
class State:
    """What a run folder holds at one moment."""

    stamps: Stamps
    """Those of the ledger and of ``banks``; they change when anything is added or removed."""
    entries: Entries
    """The chain, including banks whose lines are not yet in the ledger."""
    commits: Mapping[str, CommitLine]
    """The learned tasks, in the order they were learned."""
    folders: Mapping[str, int]
    """Inodes of the bank folders, by their names."""
    missing: Mapping[str, CommitLine]
    """Tasks that were learned and not dropped, but whose banks are not in the folder."""
    dropped: tuple[str, ...]
    """Names of folders whose banks were dropped, but not yet deleted."""
    strays: Mapping[str, str]
    """The folders that do not belong to the chain, each with a message."""
    unwritten: tuple[Line, ...]
    """Lines that follow from the folder but are not in the ledger yet."""
    results: tuple[Result, ...] | None
    """Results of a folder without a ledger; None if the ledger has them."""
    wrong: Mapping[str, str]
    """Why a file could not be read, by its name in parentheses; only `FolderReader.survey` goes on then."""


class FolderReader(RunFolder):
    """Reads a run folder; what has not changed is not read again.

    Args:
        folder: the run folder.
        max_certificates: number of certificates to keep in memory.
    """

    def __init__(self, folder: Path, max_certificates: int) -> None:
        super().__init__(folder)
        self._max_certificates = max_certificates
        self.certificates: dict[str, tuple[Stamp, Certificate]] = {}
        """The certificates in memory, by the names of their folders; the one that was used last comes last."""
        self.in_ledger = Entries()
        """What the ledger itself says."""
        self._state: State | None = None

    def state(self) -> State:
        """Return what the folder holds now; what has not changed is not read again.

        Raises:
            StoreError: if the ledger is damaged, ``banks`` is not a folder, or the folder keeps changing.
        """
        deadline = time.monotonic() + PATIENCE
        state = self._state
        while state is None or state.stamps != self.stamps():
            if state is not None and time.monotonic() > deadline:
                raise StoreError(
                    f"{self.folder}: it changes faster than it can be read. Try again later; if nothing writes to it, its "
                    "file system does not tell whether a file has changed: copy the run to another disk."
                )
            stamps = self.stamps()
            try:
                state = self._state = self._look(stamps)
            except StoreError:
                state = self._state = None
                if stamps == self.stamps() or time.monotonic() > deadline:
                    raise
        return state  # another thread may have replaced the one in memory

    def survey(self) -> State:
        """Return what can be read of a folder that may be damaged; everything is read again."""
        deadline = time.monotonic() + PATIENCE
        while True:
            stamps = self.stamps()
            self._state = self._look(stamps, even_damaged=True)
            if stamps == self.stamps() or time.monotonic() > deadline:
                return self._state

    def stamps(self) -> Stamps:
        """Return a value that changes whenever a line or a bank is added, or a bank is removed."""
        return stamp_of(self.ledger_file), stamp_of(self.banks)

    def _look(self, stamps: Stamps, *, even_damaged: bool = False) -> State:
        wrong: dict[str, str] = {}

        @contextmanager
        def reported(name: str) -> Iterator[None]:
            try:
                yield
            except StoreError as error:
                if not even_damaged:
                    raise
                wrong[name] = str(error)

        folders: dict[str, int] = {}
        with reported("(banks)"):
            folders = inodes(self.banks)
        found = Entries()
        if self.in_ledger.mark.number and not even_damaged and is_at(self.ledger_file, self.in_ledger.mark):
            found = self.in_ledger.copy()
        with reported("(ledger.jsonl)"):
            found.read(read_ledger(self.ledger_file, found.mark))
            self.in_ledger = found
        unwritten: list[Line] = []
        results: tuple[Result, ...] | None = None
        found = found.copy()
        if not os.path.lexists(self.ledger_file) and is_format_2(self.folder):
            with reported("(format 2)"):
                unwritten = self._lines_without_ledger(folders)
                results = tuple(line for line in unwritten if isinstance(line, RowLine | FinishedLine))
                for line in unwritten:
                    found.add(line, str(self.folder))
        dropped, strays = self._place(found, folders, unwritten)
        counting = {**{task: commit for task, commit in found.lost.items() if commit.folder in dropped}, **found.live}
        commits = {
            commit.task: self._with_facts(commit) if commit.file is None and commit.folder in folders else commit
            for commit in sorted(counting.values(), key=lambda commit: commit.index)
        }
        present = {commit.folder for commit in commits.values()} & folders.keys()
        return State(
            stamps=stamps,
            entries=found,
            commits={task: commit for task, commit in commits.items() if commit.folder in present},
            folders=folders,
            missing={task: commit for task, commit in commits.items() if commit.folder not in present},
            dropped=tuple(sorted(dropped - present)),
            strays=strays,
            unwritten=tuple(unwritten),
            results=results,
            wrong=wrong,
        )

    def _lines_without_ledger(self, folders: Iterable[str]) -> list[Line]:
        """Return the lines of a folder of format 2; a damaged certificate counts as missing, as in later folders."""
        known: dict[str, CommitLine] = {}
        damaged: list[str] = []
        for name in sorted(folders):
            try:
                known[name] = self._commit_in(name)
            except StoreError as error:
                damaged.append(str(error))
        try:
            return lines_of(self.folder, known)
        except StoreError as error:
            raise StoreError(" ".join([*damaged, str(error)])) from error

    def _with_facts(self, commit: CommitLine) -> CommitLine:
        """Return a commit with what its certificate says; its line has only its place if the bank was missing then."""
        with suppress(StoreError):
            found = self._commit_in(commit.folder)
            if found.seal == commit.seal:
                return found.model_copy(update={"replaces": commit.replaces})
        return commit

    def _place(
        self, found: Entries, folders: Mapping[str, int], unwritten: list[Line]
    ) -> tuple[set[str], dict[str, str]]:
        """Find where the folders belong that the ledger does not name: add those that continue the chain to it.

        Returns:
            The names of those whose banks were dropped; and of those that belong nowhere, each with a message.
        """
        left: dict[tuple[int, str | None], list[CommitLine]] = {}
        dropped, strays = set[str](), dict[str, str]()
        gone = {stone.removed.seal for stone in found.tombstones}
        for name in sorted(folders.keys() - {commit.folder for commit in found.live.values()}):
            try:
                commit = self._commit_in(name)
            except StoreError as error:
                strays[name] = str(error)
                continue
            if commit.seal in gone:
                dropped.add(name)
            else:
                strays[name] = self._stray(name, commit)
                left.setdefault((commit.index, commit.predecessor), []).append(commit)
        # If two banks want the same place, neither gets it.
        while len(candidates := left.pop(found.next, [])) == 1:
            (commit,) = candidates
            old = found.live.get(commit.task)
            if old is None and f"{commit.task}@{commit.index}" in strays:
                old = found.lost.get(commit.task)  # it was restored, and then replaced
            replaces = None if old is None else old.removed
            line = commit.model_copy(update={"replaces": replaces})
            if line.folder in strays:
                del strays[line.folder]
                found.add(line, str(self.banks))
                unwritten.append(line)
                if old is not None and old.folder in folders:
                    dropped.add(old.folder)
        return dropped, strays

    def _stray(self, name: str, commit: CommitLine) -> str:
        return (
            f"task {commit.task!r}: {self.banks / name}: its certificate is entry {commit.index} of a chain, but "
            f"{self.ledger_file.name} does not name it: the folder was copied from another run or restored from an old copy, "
            f"or the ledger has lost lines. Restore the ledger from a copy, or move the folder out of the run. {UNTIL}"
        )

    def _commit_in(self, name: str) -> CommitLine:
        """Return the line of the certificate in one bank folder."""
        certificate = self.certificate_in(name)
        path = self.banks / name
        try:
            digest = hashlib.sha256(read_file(path / "bank.json", MAX_JSON_BYTES)).hexdigest()
        except FileNotFoundError:
            raise StoreError(f"{path}: it was removed while it was being read") from None
        return commit_of(certificate, digest, sum(stamp_of(file)[2] for file in entries(path)))

    def certificate_in(self, name: str) -> Certificate:
        """Return the certificate in one bank folder; it is read again only if the file has changed."""
        folder = self.banks / name
        stamp = stamp_of(f"{folder}/bank.json")
        known = self.certificates.pop(name, None)
        if known is None or known[0] != stamp:
            refuse_link(folder)
            if os.path.isfile(folder):
                raise StoreError(
                    f"{folder}: this is a file, but only task folders belong here. Move it out of the run folder."
                )
            certificate = read_certificate(folder / "bank.json")
            if certificate.task != name.partition("@")[0]:
                raise StoreError(
                    f"{folder / 'bank.json'}: this is the certificate of task {certificate.task!r}; a folder was renamed or "
                    "copied"
                )
            known = stamp, certificate
        self.certificates[name] = known
        while len(self.certificates) > self._max_certificates:
            with suppress(KeyError, StopIteration, RuntimeError):  # another thread may use the same certificates
                del self.certificates[next(iter(self.certificates))]
        return known[1]
