"""Verifying a whole run from its folder: the chain, every certificate, and the files of no task.

Each process reads one bank at a time and lets it go, so memory does not grow with the number of tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from continual_petl.course.check_tasks import Checker
from continual_petl.course.check_together import Progress, check_together
from continual_petl.course.session import Session, other_seeds, settings_that_differ
from continual_petl.errors import InputError, StoreError, known_names
from continual_petl.store.chain import Link
from continual_petl.store.finding import TaskCheck
from continual_petl.store.pin import check_files
from continual_petl.store.store import Store
from continual_petl.store.survey import Survey, told
from continual_petl.store.verify import rotating


def verify_run(
    session: Session,
    task: str | None = None,
    *,
    data: bool = False,
    most: int | None = None,
    jobs: int | None = 1,
    tell: Progress | None = None,
) -> Iterator[TaskCheck]:
    """Check certificates, of one task or of all; nothing is raised for what is wrong, only reported.

    Args:
        session: the run; its folder is read anew.
        task: a learned task; None means all, and the files that belong to no task.
        data: also answer the test rows again.
        most: check no more certificates than this: those of the newest tasks, and of some of the others, in turn. The chain
            and the files of no task are checked in any case, with the help of the index. None: all of them.
        jobs: number of processes at most; None: as many as there are cores. A backbone that is in memory already is what is
            checked, in this process alone.
        tell: called with how many certificates are checked, and of how many.

    Raises:
        InputError: if the folder asks to execute code, and nobody else does.
    """
    session.residents.check_code()
    session.residents.look_again()
    few = most is None or _num_banks(session.store) <= most
    state = _State(session, indexed=not few, data=data)
    survey = state.survey
    yield from survey.told(task)
    tasks = [link.task for link in survey.links]
    chosen = set(tasks) if few else rotating(tasks, len(tasks) + 1, most or 0) | survey.out_of_place
    links = [link for link in survey.links if link.task in chosen and task in (None, link.task)]
    checks = check_together(
        state.checker,
        [link.task for link in links],
        jobs=1 if session.residents.backbones else jobs,
        indexed=not few,
        in_chain=lambda name: name not in survey.broken,
        tell=tell or (lambda done, total: None),
    )
    for link, check in zip(links, checks, strict=True):
        yield from state.placed(link, check)
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

    def __init__(self, session: Session, *, indexed: bool, data: bool) -> None:
        self._session = session
        self.checker = Checker(session, indexed=indexed, data=data)
        self._store = self.checker.store
        self.survey = Survey(self._store)

    def placed(self, link: Link, check: TaskCheck) -> Iterator[TaskCheck]:
        """Yield a task's check with what the chain says of it; nothing if the task was dropped meanwhile."""
        if check.ok or not self._forgotten(link):
            yield self.survey.placed(link, check)

    def _forgotten(self, link: Link) -> bool:
        try:
            gone = not self._store.bank_folder(link.task).exists()
            return gone and link.seal in {stone.removed.seal for stone in self._store.tombstones()}
        except StoreError:
            return False

    def of_no_task(self) -> Iterator[TaskCheck]:
        """Tell of tombstones out of place, of the pin, and of the backbone's files."""
        pin, wrong = self.survey.pinned()
        yield from map(self._of_stream, wrong)
        seed = self._session.spec.seed
        if self.checker.other_seed and all(check.task != "(stream.yaml)" for check in wrong):
            yield told("(stream.yaml)", f"{self._store.stream_file}: {_SEED.format(seed)}. Restore it from a copy.")
        backbone, spec = self.checker.any_backbone, self._session.spec.backbone
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
