"""Verifying a whole run from its folder: the chain, every certificate one after the other, and the files of no task.

Banks are read one at a time and let go, so memory does not grow with the number of tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from continual_petl.backbones.backbone import Backbone
from continual_petl.course.recheck import recheck_rows
from continual_petl.course.session import Session
from continual_petl.errors import InputError, StoreError
from continual_petl.store.backbone_check import check_backbone
from continual_petl.store.chain import Link, broken, counting, links_of, live
from continual_petl.store.finding import Finding
from continual_petl.store.pin import check_files
from continual_petl.store.results_file import Line, TaskLine
from continual_petl.store.store import Store
from continual_petl.store.tombstone import Tombstone
from continual_petl.store.verify import TaskCheck, check_task

_T = TypeVar("_T")


def verify_run(session: Session, task: str | None = None, *, data: bool = False) -> Iterator[TaskCheck]:
    """Check certificates, of one task or of all; nothing is raised for what is wrong, only told.

    Args:
        session: the run; its folder is read anew.
        task: a learned task; None means all, and the files that belong to no task.
        data: also answer the test rows again.

    Raises:
        InputError: if the folder asks to execute code, and nobody else does.
    """
    session.residents.check_code()
    state = _State(session)
    for name, problem in state.unreadable.items():
        if task in (None, name):
            yield _told(name, problem)
    for link in state.links:
        if task in (None, link.task):
            yield from state.check(link, data=data)
    if task is None:
        yield from state.lost()
        yield from state.of_no_task()


class _State:
    """What was found when the folder was opened."""

    def __init__(self, session: Session) -> None:
        self._session = session
        session.residents.look_again()
        # One that remembers nothing, and believes no index: what lies on the disk is what is checked.
        self._store = Store(session.store.folder, indexed=False)
        self.unreadable: dict[str, str] = {}
        self._lines: list[Line] = []
        self._store.steadily(self._look)
        self._backbones: dict[str, tuple[Backbone | None, tuple[Finding, ...]]] = {}

    def _look(self) -> None:
        self.unreadable.clear()
        # First: tasks that are committed meanwhile have no line then, and every line its bank.
        self._lines = self._read("(results.jsonl)", self._store.results) or []
        stones = map(self._tombstone, self._read("(tombstones)", self._store.tombstone_files) or [])
        found = [link for link in map(self._link, self._names()) if link is not None]
        self._tombstones = counting([stone for stone in stones if stone is not None], found)
        self.links = live(found, self._tombstones)
        gone = [link for tombstone in self._tombstones for link in links_of(tombstone)]
        self._broken = broken([*self.links, *gone])
        self._newest = max((link.index for link in [*self.links, *gone]), default=0)
        self._newest_shared = next((link.task for link in reversed(self.links) if link.shared), None)

    def _names(self) -> list[str]:
        return self._read("(banks)", self._store.names) or []

    def _tombstone(self, path: Path) -> Tombstone | None:
        return self._read(f"(tombstones/{path.name})", lambda: self._store.tombstone(path))

    def _link(self, task: str) -> Link | None:
        return self._read(task, lambda: self._store.link(task))

    def _read(self, name: str, read: Callable[[], _T]) -> _T | None:
        try:
            return read()
        except StoreError as error:
            self.unreadable[name] = str(error)
            return None

    def check(self, link: Link, *, data: bool) -> Iterator[TaskCheck]:
        """Check one task as it is now: the one of the chain, or what has replaced it since; nothing if it was forgotten."""
        check = self._store.steadily(lambda: self._check(link, data=data), link.task)
        if check.ok or not self._forgotten(link):
            yield check

    def _forgotten(self, link: Link) -> bool:
        try:
            gone = not self._store.bank_folder(link.task).exists()
            return gone and link.seal in {stone.removed.seal for stone in self._store.tombstones()}
        except StoreError:
            return False

    def _check(self, link: Link, *, data: bool) -> TaskCheck:
        task = link.task
        try:
            precision = self._store.manifest(task).environment.precision
            backbone, findings = self._backbone(precision)
            if backbone is not None:
                findings += tuple(Finding(message=text) for text in self._session.residents.check_preparation(task))
        except (InputError, StoreError) as error:
            return _told(task, str(error))
        check = check_task(self._store, task, backbone)
        chain = (Finding(message=self._broken[task]),) if task in self._broken else ()
        findings, how = (*findings, *chain, *check.findings), check.how
        if data and not findings:
            recheck = recheck_rows(self._session, task)
            how = f"{how}, test rows"
            findings = recheck.findings
            if recheck.unreachable is not None:
                how, findings = check.how, (Finding(message=recheck.unreachable, unchecked=True),)
        if link.shared and self._newest_shared != task:
            # The certificate is of the bank at commit. That holds; what answers today is another matter.
            how += f"; as committed, but it answers with the shared bank of {self._newest_shared!r} now"
        return replace(check, findings=findings, how=how)

    def _backbone(self, precision: str) -> tuple[Backbone | None, tuple[Finding, ...]]:
        """Return the backbone, and what is wrong with it, looked at once."""
        if precision not in self._backbones:
            try:
                backbone = self._session.residents.backbone("bf16" if precision == "bf16" else "fp32")
                self._backbones[precision] = backbone, tuple(check_backbone(backbone))
            except (InputError, StoreError) as error:
                self._backbones[precision] = None, (Finding(message=str(error)),)
        return self._backbones[precision]

    def lost(self) -> Iterator[TaskCheck]:
        """Tell of tasks that the results name, and that are neither there nor forgotten on purpose."""
        there = {(link.task, link.index) for link in self.links}
        # After a tombstone that makes room for another bank comes that bank; if none came, the old one is lost too.
        there |= {(s.task, s.removed.index) for s in self._tombstones if s.why == "forgotten" or s.index < self._newest}
        known = {task for task, _ in there} | self.unreadable.keys()
        for line in self._lines:
            if not isinstance(line, TaskLine) or line.task in self.unreadable:
                continue
            if (line.task, line.index) not in there and not (line.index is None and line.task in known):
                folder = self._store.bank_folder(line.task)
                yield _told(
                    line.task,
                    f"task {line.task!r} was learned, but its bank is gone: {folder} is missing. Restore the folder from a "
                    "copy; if the task was forgotten on purpose, its tombstone",
                )
        # Only the newest can be unfinished: a course ends all work on a task before the next one.
        named = {line.task for line in self._lines if isinstance(line, TaskLine)}
        without = [link.task for link in self.links[:-1] if link.task not in named]
        if without and "(results.jsonl)" not in self.unreadable:
            tasks = ", ".join(map(repr, without))
            yield _told("(results.jsonl)", f"{self._store.results_file}: what it said of {tasks} is gone; restore it")

    def of_no_task(self) -> Iterator[TaskCheck]:
        """Tell of tombstones out of place, of the pin, and of the backbone's files."""
        tasks = {link.task for link in self.links}
        for task, problem in self._broken.items():
            if task not in tasks:
                yield _told("(tombstones)", problem)
        try:
            pin = self._store.pin()
        except StoreError as error:
            yield _told("(backbone.json)", str(error))
            return
        if pin is None and self.links:
            yield _told(
                "(backbone.json)", f"{self._store.pin_file}: missing; it says which backbone the run was learned on"
            )
        backbone = next((backbone for backbone, _ in self._backbones.values() if backbone is not None), None)
        spec = self._session.spec.backbone
        if pin is not None and backbone is not None:
            for problem in check_files(self._store.pin_file, pin, spec.name, spec.revision, backbone):
                yield _told("(backbone)", problem)


def _told(task: str, problem: str) -> TaskCheck:
    return TaskCheck(
        task=task, findings=(Finding(message=problem),), how="digests", largest_difference=math.nan, seconds=0.0
    )
