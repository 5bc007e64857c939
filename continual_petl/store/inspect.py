"""Inspect a run folder, even a damaged one: its ledger, missing banks, and files that belong to no task.

Damage is reported, not raised, so everything else in the run can still be verified or shown. No bank or backbone is read
here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from continual_petl.errors import StoreError
from continual_petl.store.certificate.finding import Finding, TaskCheck
from continual_petl.store.certificate.pinned_backbone import PinnedBackbone
from continual_petl.store.folder.stream_seal import stream_problem
from continual_petl.store.ledger.lines import CommitLine, Result, unfinished
from continual_petl.store.store import Store

_T = TypeVar("_T")
LEDGER = "(ledger.jsonl)"
OTHER_SEED = "it has seed {}, but tasks were learned with a different seed"


class Inspection:
    """The result of inspecting a run folder.

    Args:
        store: the run.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.unreadable: dict[str, str] = {}
        """What is missing or damaged, by task or folder, or by file name in parentheses."""
        self.lines: list[Result] = []
        """Results, without the cells of the rows."""
        store.consistently(self._scan)

    def _scan(self) -> None:
        store = self._store
        state = store.survey()
        self.unreadable = dict(state.wrong)
        self.lines = self._read(LEDGER, lambda: list(store.results_without_cells())) or []
        self.tombstones = state.entries.tombstones
        if not state.wrong:
            self.unreadable |= {**state.strays, **store.missing()}
        for task, commit in state.commits.items():
            self._read(task, partial(store.check_certificate, commit))
        self.commits = [commit for task, commit in state.commits.items() if task not in self.unreadable]
        self.newest_shared = next((commit.task for commit in reversed(self.commits) if commit.shared), None)
        """The task whose bank is used for all tasks that share one."""

    def _read(self, name: str, read: Callable[[], _T]) -> _T | None:
        try:
            return read()
        except StoreError as error:
            self.unreadable.setdefault(name, str(error))
            return None

    def failed_checks(self, only: str | None = None) -> Iterator[TaskCheck]:
        """Yield a failed check for everything that is missing or damaged, or only for one task."""
        for name, problem in self.unreadable.items():
            if only in (None, name):
                yield failed_check(name, problem)

    def placed(self, commit: CommitLine, check: TaskCheck) -> TaskCheck:
        """Return a task's check, which says so if the task predicts with the bank of a newer one."""
        if commit.shared and self.newest_shared != commit.task:
            # The certificate covers the bank as committed, which is unchanged; another bank is used now.
            how = f"{check.how}; as committed, but it now predicts with the shared bank of {self.newest_shared!r}"
            check = replace(check, how=how)
        return check

    def verdicts(self, commits: Sequence[CommitLine], checks: Iterable[TaskCheck]) -> Iterator[TaskCheck]:
        """Yield the checks of some tasks, but none of a failed one that was dropped in the meantime."""
        for commit, check in zip(commits, checks, strict=True):
            if check.ok or not self.was_dropped(commit):
                yield self.placed(commit, check)

    def was_dropped(self, commit: CommitLine) -> bool:
        """Return whether a task was forgotten or replaced after the inspection."""
        try:
            return commit.seal in {stone.removed.seal for stone in self._store.tombstones()}
        except StoreError:
            return False

    def unfinished(self) -> Iterator[TaskCheck]:
        """Yield a failed check if the ledger has lost lines: a run finishes a task before it starts the next."""
        without = unfinished(self.commits[:-1], self.lines)
        if without and LEDGER not in self.unreadable:
            tasks = ", ".join(map(repr, without))
            yield failed_check(
                LEDGER, f"{self._store.ledger_file}: its lines about {tasks} are missing; restore the file"
            )

    def pinned(self) -> tuple[PinnedBackbone | None, list[TaskCheck]]:
        """Return the backbone's pin, and failed checks of the pin and the stream file."""
        wrong = []
        if (problem := self._read("(stream.yaml)", lambda: stream_problem(self._store))) is not None:
            wrong.append(failed_check("(stream.yaml)", problem))
        try:
            pinned = self._store.pinned()
        except StoreError as error:
            return None, [*wrong, failed_check("(backbone.json)", str(error))]
        if pinned is None and self.commits:
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
