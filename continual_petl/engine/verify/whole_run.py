"""Verify a whole run from its folder: the chain, every certificate, and files that belong to no task.

Each process reads one bank at a time and releases it, so memory does not grow with the number of tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from continual_petl.engine.session import Session, other_seeds, settings_that_differ
from continual_petl.engine.verify.checker import Checker
from continual_petl.engine.verify.in_processes import OnProgress, check_together
from continual_petl.errors import InputError, StoreError, known_names
from continual_petl.store.certificate.chain import Link
from continual_petl.store.certificate.finding import TaskCheck
from continual_petl.store.certificate.pin import check_files
from continual_petl.store.inspect import OTHER_SEED, Inspection, failed_check
from continual_petl.store.store import Store
from continual_petl.store.verify.certificate import rotating


def verify_run(
    session: Session,
    task: str | None = None,
    *,
    data: bool = False,
    limit: int | None = None,
    jobs: int | None = 1,
    progress: OnProgress | None = None,
) -> Iterator[TaskCheck]:
    """Check the certificate of one task or of all tasks; problems are reported, never raised.

    Args:
        session: the run; its folder is read again.
        task: a learned task; None means all, and the files that belong to no task.
        data: whether to also predict the test rows again.
        limit: check at most this many certificates: those of the newest tasks and, in rotation, of some other tasks. The
            chain and the files that belong to no task are always checked, using the index. None means all certificates.
        jobs: maximum number of processes; None means one for each core. If a backbone is already in memory, that copy is
            checked, in this process alone.
        progress: called with the number of certificates checked so far and the total.

    Raises:
        InputError: if the backbone needs remote code that the user has not allowed.
    """
    session.models.check_code()
    session.models.look_again()
    few = limit is None or _num_banks(session.store) <= limit
    state = _State(session, indexed=not few, data=data)
    survey = state.survey
    yield from survey.failed_checks(task)
    tasks = [link.task for link in survey.links]
    chosen = set(tasks) if few else rotating(tasks, len(tasks) + 1, limit or 0) | survey.out_of_place
    links = [link for link in survey.links if link.task in chosen and task in (None, link.task)]
    checks = check_together(
        state.checker,
        [link.task for link in links],
        jobs=1 if session.models.backbones else jobs,
        in_chain=lambda name: name not in survey.broken,
        progress=progress or (lambda done, total: None),
    )
    for link, check in zip(links, checks, strict=True):
        yield from state.placed(link, check)
    if task is None:
        yield from survey.lost()
        yield from state.of_no_task()


def _num_banks(store: Store) -> int:
    with suppress(StoreError):  # reported when the folder is read
        return len(store.names())
    return 0


class _State:
    """The state of one verification: the inspected folder and the checker."""

    def __init__(self, session: Session, *, indexed: bool, data: bool) -> None:
        self._session = session
        self.checker = Checker(session, indexed=indexed, data=data)
        self._store = self.checker.store
        self.survey = Inspection(self._store)

    def placed(self, link: Link, check: TaskCheck) -> Iterator[TaskCheck]:
        """Yield a task's check with the chain's findings added; nothing if the task was dropped in the meantime."""
        if check.ok or not self.survey.was_dropped(link):
            yield self.survey.placed(link, check)

    def of_no_task(self) -> Iterator[TaskCheck]:
        """Yield the failed checks that belong to no task: tombstones, the pin, the stream file, the backbone's files."""
        pin, wrong = self.survey.pinned()
        wrong = list(map(self._of_stream, wrong))
        yield from self.survey.with_seed(wrong, self._session.spec.seed, differs=self.checker.other_seed)
        backbone, spec = self.checker.any_backbone, self._session.spec.backbone
        if pin is not None and backbone is not None:
            for problem in check_files(self._store.pin_file, pin, spec.name, spec.revision, backbone):
                yield failed_check("(backbone)", problem)

    def _of_stream(self, check: TaskCheck) -> TaskCheck:
        """Add to a failed check of stream.yaml how the file differs from the certificates; return other checks unchanged."""
        if check.task != "(stream.yaml)":
            return check
        spec, tasks = self._session.spec, [link.task for link in self.survey.links]
        found = []
        with suppress(InputError, StoreError):
            if other_seeds(self._store, spec.seed, tasks):
                found.append(OTHER_SEED.format(spec.seed))
            if unnamed := [task for task in tasks if task not in {each.name for each in spec.tasks}]:
                found.append(f"learned, but not named in it: {known_names(unnamed)}")
            differ = {task: keys for task, keys in settings_that_differ(self._session).items() if keys != ["seed"]}
            found += [f"task {task!r} has other settings ({', '.join(keys)})" for task, keys in differ.items()]
        differs = f"Compared with the certificates: {'; '.join(found) or 'nothing differs'}"
        return replace(check, findings=tuple(each.also(differs) for each in check.findings))
