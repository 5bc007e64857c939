"""Inspect a run folder, even a damaged one: the chain, files that belong to no task, and missing entries.

Damage is reported, not raised, so everything else in the run can still be verified or shown. No bank or backbone is read
here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from continual_petl.errors import StoreError
from continual_petl.store.certificate.chain import Link, broken, counting, live, whole
from continual_petl.store.certificate.finding import Finding, TaskCheck
from continual_petl.store.certificate.pinned_backbone import PinnedBackbone
from continual_petl.store.folder.missing_entries import missing
from continual_petl.store.folder.results_file import Line, TaskLine, read_without_cells
from continual_petl.store.folder.stream_seal import stream_problem
from continual_petl.store.store import Store

_T = TypeVar("_T")
OTHER_SEED = "it has seed {}, but tasks were learned with a different seed"


class Inspection:
    """The result of inspecting a run folder.

    Args:
        store: the run; opened without the index if everything on disk is to be checked.
        rows: whether ``lines`` includes the cells of the result matrix, which take a lot of memory in a long run.
    """

    def __init__(self, store: Store, *, rows: bool = True) -> None:
        self._store, self._rows = store, rows
        self.unreadable: dict[str, str] = {}
        """The reason why each unreadable file cannot be read, by task or by file name in parentheses."""
        self.lines: list[Line] = []
        """Lines of ``results.jsonl``."""
        store.consistently(self._scan)

    def _scan(self) -> None:
        self.unreadable.clear()
        # Read the results first: a task committed during the scan may then have a bank but no line yet, whereas a line never
        # lacks its bank.
        store = self._store
        results = store.results if self._rows else lambda: read_without_cells(store.results_file)
        self.lines = self._read("(results.jsonl)", results) or []
        files = self._read("(tombstones)", store.tombstone_files) or []
        stones = [self._read(f"(tombstones/{path.name})", partial(store.tombstone, path)) for path in files]
        store.read_index()
        links = [self._read(task, partial(store.link, task)) for task in self._read("(banks)", store.names) or []]
        readable = [link for link in links if link is not None]
        known = {line.index for line in self.lines}
        self.tombstones = counting(
            [stone for stone in stones if stone is not None], readable, lambda index: index + 1 in known
        )
        self.links = live(readable, self.tombstones)
        chain = whole(self.links, self.tombstones)
        self.broken: Mapping[str, str] = broken(chain)
        # An unreadable entry is reported as unreadable, not as missing; its position is unknown.
        self._missing = missing(chain, self.tombstones, self.lines, gaps=not self.unreadable)
        self.newest_shared = next((link.task for link in reversed(self.links) if link.shared), None)
        """The task whose bank is used for all tasks that share one."""

    def _read(self, name: str, read: Callable[[], _T]) -> _T | None:
        try:
            return read()
        except StoreError as error:
            self.unreadable[name] = str(error)
            return None

    def failed_checks(self, only: str | None = None) -> Iterator[TaskCheck]:
        """Yield a failed check for each unreadable file of one task or of all tasks."""
        for name, problem in self.unreadable.items():
            if only in (None, name):
                yield failed_check(name, problem)

    def placed(self, link: Link, check: TaskCheck) -> TaskCheck:
        """Return a task's check with the chain's findings added."""
        of_chain = [self.broken[link.task]] if link.task in self.broken else []
        # Entries for which results.jsonl names a different certificate.
        of_chain += [
            entry.message(self._store.folder) for entry in self._missing if entry.taken == entry.task == link.task
        ]
        check = replace(check, findings=(*(Finding(message=text) for text in of_chain), *check.findings))
        if link.shared and self.newest_shared != link.task:
            # The certificate covers the bank as committed, which is unchanged; another bank is used now.
            how = f"{check.how}; as committed, but it now predicts with the shared bank of {self.newest_shared!r}"
            check = replace(check, how=how)
        return check

    def verdicts(self, links: Sequence[Link], checks: Iterable[TaskCheck]) -> Iterator[TaskCheck]:
        """Yield the checks of some tasks with the chain's findings, but none of a task that was dropped in the meantime."""
        for link, check in zip(links, checks, strict=True):
            if check.ok or not self.was_dropped(link):
                yield self.placed(link, check)

    def was_dropped(self, link: Link) -> bool:
        """Return whether a task was forgotten or replaced after the inspection."""
        try:
            gone = not self._store.bank_folder(link.task).exists()
            return gone and link.seal in {stone.removed.seal for stone in self._store.tombstones()}
        except StoreError:
            return False

    @property
    def out_of_place(self) -> set[str]:
        """Tasks whose certificate or tombstone does not continue the chain, or differs from the one in the results."""
        return {*self.broken, *(entry.task for entry in self._missing if entry.task is not None)}

    def lost(self) -> Iterator[TaskCheck]:
        """Yield a failed check for each entry or results line that is missing and was not dropped on purpose."""
        for entry in self._missing:
            if entry.task not in self.unreadable and (entry.taken is None or entry.taken != entry.task):
                yield failed_check(entry.task or "(chain)", entry.message(self._store.folder))
        # Only the newest task can be unfinished: a run finishes a task before it starts the next.
        named = {line.task for line in self.lines if isinstance(line, TaskLine)}
        without = [link.task for link in self.links[:-1] if link.task not in named]
        if without and "(results.jsonl)" not in self.unreadable:
            tasks = ", ".join(map(repr, without))
            yield failed_check(
                "(results.jsonl)", f"{self._store.results_file}: its lines about {tasks} are missing; restore the file"
            )

    def pinned(self) -> tuple[PinnedBackbone | None, list[TaskCheck]]:
        """Return the backbone's pin, and failed checks of the pin, the stream file and misplaced tombstones."""
        tasks = {link.task for link in self.links}
        wrong = [failed_check("(tombstones)", problem) for task, problem in self.broken.items() if task not in tasks]
        problem = self._read("(results.jsonl)", lambda: stream_problem(self._store))
        if problem is not None:
            wrong.append(failed_check("(stream.yaml)", problem))
        try:
            pinned = self._store.pinned()
        except StoreError as error:
            return None, [*wrong, failed_check("(backbone.json)", str(error))]
        if pinned is None and self.links:
            missing = f"{self._store.pin_file}: missing; it records which backbone the run was learned on"
            wrong.append(failed_check("(backbone.json)", missing))
        return pinned, wrong

    def with_seed(self, wrong: Sequence[TaskCheck], seed: int, *, differs: bool) -> list[TaskCheck]:
        """Return failed checks, with one of stream.yaml added if its seed differs from the one in the certificates."""
        if not differs or any(check.task == "(stream.yaml)" for check in wrong):
            return list(wrong)
        problem = f"{self._store.stream_file}: {OTHER_SEED.format(seed)}. Restore it from a copy."
        return [*wrong, failed_check("(stream.yaml)", problem)]


def failed_check(task: str, problem: str) -> TaskCheck:
    """Return a problem as a separate failed check."""
    return TaskCheck(
        task=task, findings=(Finding(message=problem),), how="digests", largest_difference=math.nan, seconds=0.0
    )
