"""Verify a whole run from its folder: the chain, every certificate, and files that belong to no task.

Each process reads one bank at a time and releases it, so memory does not grow with the number of tasks. This process
begins, and starts others if the remaining checks would take long. It checks itself what another process could not, so a
verdict never depends on whether other processes work.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

import torch
from typing_extensions import override

from continual_petl._process import memory, num_cores
from continual_petl.backbones.backbone import Backbone
from continual_petl.engine.changed_settings import other_seeds, settings_that_differ
from continual_petl.engine.parallel.processes import Processes, is_being_started
from continual_petl.engine.session import ProcessSettings, Session
from continual_petl.engine.verify.digests import OnProgress
from continual_petl.errors import InputError, StoreError, known_names
from continual_petl.store.certificate.finding import UNCHANGED, Finding, TaskCheck
from continual_petl.store.certificate.pinned_backbone import check_files
from continual_petl.store.inspect import OTHER_SEED, Inspection, failed_check
from continual_petl.store.store import Store
from continual_petl.store.verify.backbone_check import check_backbone
from continual_petl.store.verify.certificate import check_task, rotating


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
            ledger and the files that belong to no task are always checked. None means all certificates.
        jobs: maximum number of processes; None means one for each core. If a backbone is already in memory, that copy is
            checked, in this process alone.
        progress: called with the number of certificates checked so far and the total.

    Raises:
        InputError: if the backbone needs remote code that the user has not allowed.
    """
    session.models.check_code()
    session.models.forget_digest()
    checker = Checker(session, data=data)
    survey = Inspection(checker.store)
    yield from survey.failed_checks(task)
    tasks = [commit.task for commit in survey.commits]
    _check_jobs(jobs := 1 if session.models.backbones else jobs)
    chosen = set(tasks) if limit is None or len(tasks) <= limit else rotating(tasks, len(tasks) + 1, limit)
    commits = [commit for commit in survey.commits if commit.task in chosen and task in (None, commit.task)]
    chunks = [commits[start : start + _AT_A_TIME] for start in range(0, len(commits), _AT_A_TIME)]
    asked = [[commit.task for commit in chunk] for chunk in chunks]
    yield from survey.verdicts(commits, _checked(checker, asked, jobs, progress or (lambda done, total: None)))
    if task is None:
        yield from survey.unfinished()
        yield from _of_no_task(session, checker, survey)


def _of_no_task(session: Session, checker: Checker, survey: Inspection) -> Iterator[TaskCheck]:
    """Yield the failed checks that belong to no task: the pin, the stream file, the backbone's files."""
    pinned, wrong = survey.pinned()
    wrong = [_of_stream(session, checker, survey, check) if check.task == "(stream.yaml)" else check for check in wrong]
    yield from survey.with_seed(wrong, session.spec.seed, differs=checker.other_seed)
    backbone, spec = checker.any_backbone, session.spec.backbone
    if pinned is not None and backbone is not None:
        for problem in check_files(checker.store.pin_file, pinned, spec.name, spec.revision, backbone):
            yield failed_check("(backbone)", problem)


def _of_stream(session: Session, checker: Checker, survey: Inspection, check: TaskCheck) -> TaskCheck:
    """Add to a failed check of stream.yaml how the file differs from the certificates."""
    spec, tasks = session.spec, [commit.task for commit in survey.commits]
    differences = []
    with suppress(InputError, StoreError):
        if other_seeds(checker.store, spec.seed, tasks):
            differences.append(OTHER_SEED.format(spec.seed))
        if unnamed := [task for task in tasks if task not in {named.name for named in spec.tasks}]:
            differences.append(f"learned, but not named in it: {known_names(unnamed)}")
        differ = {task: keys for task, keys in settings_that_differ(session).items() if keys != ["seed"]}
        differences += [f"task {task!r} has other settings ({', '.join(keys)})" for task, keys in differ.items()]
    differs = f"Compared with the certificates: {'; '.join(differences) or 'nothing differs'}"
    return replace(check, findings=tuple(finding.also(differs) for finding in check.findings))


_AT_A_TIME = 8
_WORTH_S = 30.0
"""Other processes are started only if the remaining checks would take this process alone longer than this, in seconds."""
_Chunk = list[str]
"""Names of tasks."""


def _checked(checker: Checker, chunks: list[_Chunk], jobs: int | None, progress: OnProgress) -> list[TaskCheck]:
    """Return one check per task, in order.

    Args:
        checker: the checker of this process.
        chunks: the tasks, in portions for one process.
        jobs: maximum number of processes, this one included; None: as many as the checker finds worth starting.
        progress: called after every portion.
    """
    found: dict[int, list[TaskCheck]] = {}
    began, total = time.monotonic(), sum(map(len, chunks))

    def note(number: int, checks: list[TaskCheck] | None = None) -> int:
        found[number] = checker.check_all(chunks[number]) if checks is None else checks
        progress(num_checked := sum(map(len, found.values())), total)
        return num_checked

    for number in range(len(chunks)):
        num_checked = note(number)
        rest = (time.monotonic() - began) / num_checked * (total - num_checked)
        if rest > _WORTH_S and (num_jobs := checker.most_jobs() if jobs is None else jobs) > 1:
            _share(checker, {left: chunks[left] for left in range(number + 1, len(chunks))}, num_jobs, note)
            break
    return [check for number in range(len(chunks)) for check in found[number]]


def _share(checker: Checker, chunks: dict[int, _Chunk], jobs: int, note: Callable[..., int]) -> None:
    """Check portions in this process and others; ``note`` is called with each number, and its checks if another made them.

    Another process that fails, for whatever reason, is not used again: its portion is checked here.
    """
    order, unbegun = checker.divide(jobs), deque(chunks)
    helpers = [Processes(order, 1) for _ in range(jobs - 1)]
    num_helpers, answers = len(helpers), SimpleQueue[tuple[int, tuple[list[TaskCheck], bool] | None]]()

    def use(helper: Processes) -> None:
        with closing(helper):
            while (number := _taken(unbegun.popleft)) is not None:
                try:
                    answers.put((number, helper.learn(chunks[number])))
                except Exception:
                    answers.put((number, None))
                    return

    with ThreadPoolExecutor(num_helpers) as threads:
        try:
            for helper in helpers:
                threads.submit(use, helper)
            for _ in chunks:  # one verdict at a time, whoever makes it
                number = _taken(unbegun.pop) if answers.empty() else None
                if number is not None:
                    note(number)
                    continue
                number, answer = answers.get()
                if answer is None:
                    num_helpers -= 1
                    checker.share = checker.share if num_helpers else None
                    note(number)
                else:
                    checks, other_seed = answer
                    checker.other_seed |= other_seed
                    note(number, checks)
        except BaseException:
            unbegun.clear()
            for helper in helpers:
                helper.kill()
            raise
        finally:
            checker.share = None


def _taken(take: Callable[[], int]) -> int | None:
    """Return a portion's number taken from a queue; None if the queue is empty."""
    try:
        return take()
    except IndexError:
        return None


def _check_jobs(jobs: int | None) -> None:
    if jobs != 1 and is_being_started():
        raise InputError(
            "jobs: a process that verifies imports the script that started it, and would start verifying again: put "
            'run.verify(...) under `if __name__ == "__main__":`, or use jobs=1.'
        )


_OVERHEAD = 2**30
"""Bytes that a process takes in addition to its backbone."""


@dataclass(frozen=True, kw_only=True)
class Order(ProcessSettings):
    """What another process needs to check certificates as this process would."""

    consent: bool
    """Whether the remote code that comes with a backbone may be executed if the run asks for it."""
    data: bool
    """Whether test rows are predicted again."""
    share: int
    """Number of threads of each process while several processes check in parallel."""

    @override
    def opened(self, signals: tuple[int, ...]) -> Callable[[_Chunk], tuple[list[TaskCheck], bool]]:
        self.enter("run", ".")
        session = Session(self.spec, Store(Path(self.folder)), consent=self.consent)
        checker = Checker(session, data=self.data)
        checker.share = self.share
        return lambda chunk: (checker.check_all(chunk), checker.other_seed)


class Checker:
    """Checks tasks of a run against their certificates; problems are reported, never raised.

    Args:
        session: the run.
        data: whether to also predict the test rows again.
    """

    def __init__(self, session: Session, *, data: bool) -> None:
        self._session, self._data = session, data
        # A store with empty caches: everything is read from disk.
        self.store = Store(session.store.folder)
        self._backbones: dict[str, tuple[Backbone | None, tuple[Finding, ...]]] = {}
        self.other_seed = False
        """Whether a certificate has a different seed from the stream."""
        self.share: int | None = None
        """Number of threads while other processes check in parallel; None means all."""

    @property
    def any_backbone(self) -> Backbone | None:
        """A backbone loaded so far, in any precision; None if none was needed or could be loaded."""
        return next((backbone for backbone, _ in self._backbones.values() if backbone is not None), None)

    def most_jobs(self) -> int:
        """Return the number of processes: one for each core, limited by how many backbones fit in half of the memory."""
        backbone = self.any_backbone
        if backbone is None:
            return 1
        size = sum(tensor.numel() * tensor.element_size() for tensor in backbone.model.state_dict().values())
        return max(1, min(num_cores(), memory() // 2 // int(size + _OVERHEAD)))

    def divide(self, jobs: int) -> Order:
        """Use only a share of the threads from now on, and return what other processes need to check as this one."""
        self.share = max(1, torch.get_num_threads() // jobs)
        session, consent = self._session, self._session.models.consent
        more = {"consent": consent, "data": self._data, "share": self.share}
        return Order.here(session.folder, session.spec, **more)

    def check_all(self, tasks: _Chunk) -> list[TaskCheck]:
        """Check several tasks; see `check`."""
        return [self.check(task) for task in tasks]

    def check(self, task: str) -> TaskCheck:
        """Check one task in its current state.

        Args:
            task: name of the task.
        """
        if self.share is None:
            return self._check(task)
        with _threads(self.share):
            check = self._check(task)
        # The last bits of a product can depend on the number of threads, so a difference is checked again with all threads.
        return check if check.ok and check.how.startswith(UNCHANGED) else self._check(task)

    def _check(self, task: str) -> TaskCheck:
        return self.store.consistently(lambda: self._check_now(task), task)

    def _check_now(self, task: str) -> TaskCheck:
        try:
            self.other_seed |= bool(other_seeds(self.store, self._session.spec.seed, [task]))
            certificate = self.store.certificate(task)
            backbone, findings = self._backbone(certificate.environment.precision)
            if backbone is not None:
                findings += tuple(Finding(message=text) for text in self._session.models.check_preparation(certificate))
        except (InputError, StoreError) as error:
            return failed_check(task, str(error))
        check = check_task(self.store, task, backbone)
        check = replace(check, findings=(*findings, *check.findings))
        if self._data and not check.findings:
            if not certificate.is_measured:
                return replace(check, how=f"{check.how}, and no rows, since it was imported without any")
            from continual_petl.engine.scoring.evaluate import check_rows  # imports Lightning

            recheck = check_rows(self._session, task)
            if recheck.unreachable is None:
                check = replace(check, how=f"{check.how}, {recheck.split} rows", findings=recheck.findings)
            else:
                how = f"{check.how}; {recheck.split} rows not available"
                check = replace(check, how=how, findings=(Finding(message=recheck.unreachable, unchecked="rows"),))
        return check

    def _backbone(self, precision: str) -> tuple[Backbone | None, tuple[Finding, ...]]:
        """Return the backbone and the findings about it; the backbone is checked only once."""
        if precision not in self._backbones:
            try:
                backbone = self._session.models.backbone("bf16" if precision == "bf16" else "fp32")
                self._backbones[precision] = backbone, tuple(check_backbone(backbone))
            except (InputError, StoreError) as error:
                self._backbones[precision] = None, (Finding(message=str(error)),)
        return self._backbones[precision]


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
