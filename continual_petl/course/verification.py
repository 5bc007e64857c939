"""Verifying a whole run from its folder: the chain, every certificate one after the other, and the files of no task.

Banks are read one at a time and let go, so memory does not grow with the number of tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from continual_petl.backbones.backbone import Backbone
from continual_petl.callbacks.no_forgetting import rotating
from continual_petl.course.recheck import recheck_rows
from continual_petl.course.session import Session, other_seeds, settings_that_differ
from continual_petl.errors import InputError, StoreError, known_names
from continual_petl.store.backbone_check import check_backbone
from continual_petl.store.chain import Link
from continual_petl.store.finding import Finding, TaskCheck
from continual_petl.store.pin import check_files
from continual_petl.store.store import Store
from continual_petl.store.survey import Survey, told
from continual_petl.store.verify import check_task


def verify_run(
    session: Session, task: str | None = None, *, data: bool = False, most: int | None = None
) -> Iterator[TaskCheck]:
    """Check certificates, of one task or of all; nothing is raised for what is wrong, only told.

    Args:
        session: the run; its folder is read anew.
        task: a learned task; None means all, and the files that belong to no task.
        data: also answer the test rows again.
        most: check no more certificates than this: those of the newest tasks, and of some of the others, in turn. The chain
            and the files of no task are checked in any case, with the help of the index. None: all of them.

    Raises:
        InputError: if the folder asks to execute code, and nobody else does.
    """
    session.residents.check_code()
    session.residents.look_again()
    few = most is None or _num_banks(session.store) <= most
    state = _State(session, indexed=not few)
    survey = state.survey
    yield from survey.told(task)
    tasks = [link.task for link in survey.links]
    chosen = set(tasks) if few else rotating(tasks, len(tasks) + 1, most or 0) | survey.out_of_place
    for link in survey.links:
        if link.task in chosen and task in (None, link.task):
            yield from state.check(link, data=data)
    if task is None:
        yield from survey.lost()
        yield from state.of_no_task()


def _num_banks(store: Store) -> int:
    with suppress(StoreError):  # which is reported when the folder is read
        return len(store.names())
    return 0


_SEED = "it gives the seed {}, but tasks were learned from another one"


class _State:
    """What was found when the folder was opened."""

    def __init__(self, session: Session, *, indexed: bool) -> None:
        self._session = session
        # One that remembers nothing: what lies on the disk is what is checked, and all of it if no index is believed.
        self._store = Store(session.store.folder, indexed=indexed)
        self.survey = Survey(self._store)
        self._backbones: dict[str, tuple[Backbone | None, tuple[Finding, ...]]] = {}
        self._other_seed = False
        """Whether a certificate is of another seed than the stream gives."""

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
            self._other_seed |= bool(other_seeds(self._store, self._session.spec.seed, [task]))
            backbone, findings = self._backbone(self._store.manifest(task).environment.precision)
            if backbone is not None:
                findings += tuple(Finding(message=text) for text in self._session.residents.check_preparation(task))
        except (InputError, StoreError) as error:
            return told(task, str(error))
        check = check_task(self._store, task, backbone)
        check = replace(check, findings=(*findings, *check.findings))
        if data and not check.findings and task not in self.survey.broken:
            recheck = recheck_rows(self._session, task)
            if recheck.unreachable is None:
                check = replace(check, how=f"{check.how}, {recheck.split} rows", findings=recheck.findings)
            else:
                check = replace(check, findings=(Finding(message=recheck.unreachable, unchecked=True),))
        return self.survey.placed(link, check)

    def _backbone(self, precision: str) -> tuple[Backbone | None, tuple[Finding, ...]]:
        """Return the backbone, and what is wrong with it, looked at once."""
        if precision not in self._backbones:
            try:
                backbone = self._session.residents.backbone("bf16" if precision == "bf16" else "fp32")
                self._backbones[precision] = backbone, tuple(check_backbone(backbone))
            except (InputError, StoreError) as error:
                self._backbones[precision] = None, (Finding(message=str(error)),)
        return self._backbones[precision]

    def of_no_task(self) -> Iterator[TaskCheck]:
        """Tell of tombstones out of place, of the pin, and of the backbone's files."""
        pin, wrong = self.survey.pinned()
        yield from map(self._of_stream, wrong)
        seed = self._session.spec.seed
        if self._other_seed and all(check.task != "(stream.yaml)" for check in wrong):
            yield told("(stream.yaml)", f"{self._store.stream_file}: {_SEED.format(seed)}. Restore it from a copy.")
        backbone = next((backbone for backbone, _ in self._backbones.values() if backbone is not None), None)
        spec = self._session.spec.backbone
        if pin is not None and backbone is not None:
            for problem in check_files(self._store.pin_file, pin, spec.name, spec.revision, backbone):
                yield told("(backbone)", problem)

    def _of_stream(self, check: TaskCheck) -> TaskCheck:
        """Return what is wrong with stream.yaml, with what it says otherwise than the certificates."""
        if check.task != "(stream.yaml)":
            return check
        spec, tasks = self._session.spec, [link.task for link in self.survey.links]
        found = []
        with suppress(InputError, StoreError):
            if other_seeds(self._store, spec.seed, tasks):
                found.append(_SEED.format(spec.seed))
            if unnamed := [task for task in tasks if task not in {each.name for each in spec.tasks}]:
                found.append(f"learned, but not named in it: {known_names(unnamed)}")
            differ = settings_that_differ(self._session)
            found += [f"task {task!r} has other settings ({', '.join(keys)})" for task, keys in differ.items()]
        differs = f"Compared with the certificates: {'; '.join(found) or 'nothing differs'}"
        return replace(check, findings=tuple(each.also(differs) for each in check.findings))
