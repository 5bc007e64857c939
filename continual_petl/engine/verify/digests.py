"""Verify files, digests and the chain of a whole run without running a bank: neither backbone nor torch is needed.

This takes a fraction of the time of a full verification and finds every change of a file, but only a full verification
shows that the banks also give the same outputs on this machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from continual_petl.engine.verify.in_processes import OnProgress, check_links, num_cores
from continual_petl.errors import StoreError
from continual_petl.heads.metric_code import code_problem
from continual_petl.seeding import derive_seed
from continual_petl.store.certificate.finding import Finding, TaskCheck
from continual_petl.store.inspect import Inspection, failed_check
from continual_petl.store.store import Store
from continual_petl.store.verify.certificate import check_task


class DigestChecker:
    """Checks the files of tasks against their certificates; problems are reported, never raised.

    Args:
        folder: the run folder.
        seed: the stream's seed.
    """

    worth_s = 5.0

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self.store = Store(folder, indexed=False)
        self.other_seed = False
        """Whether a certificate has a different seed from the stream."""

    def check(self, task: str, *, in_chain: bool = True) -> TaskCheck:
        """Check the files of one task."""
        return self.store.consistently(lambda: self._check(task), task)

    def _check(self, task: str) -> TaskCheck:
        try:
            self.other_seed |= self.store.certificate(task).seed != derive_seed(self._seed, task)
        except StoreError as error:
            return failed_check(task, str(error))
        return check_task(self.store, task, None, probe=False)

    def most_jobs(self) -> int:
        """Return the number of processes that are worth starting: one for each core."""
        return num_cores()

    def divide(self, jobs: int) -> Callable[[], DigestChecker]:
        """Return a function that makes a checker in another process, whose files have the same names there."""
        return partial(_checker_in, os.getcwd(), self._folder, self._seed)

    def alone(self) -> None:
        """Do nothing: the number of processes makes no difference."""


def _checker_in(working_directory: str, folder: Path, seed: int) -> DigestChecker:
    os.chdir(working_directory)
    return DigestChecker(folder, seed)


def verify_digests(
    store: Store, seed: int, task: str | None = None, *, jobs: int | None = 1, progress: OnProgress | None = None
) -> Iterator[TaskCheck]:
    """Check the files of one task or of all tasks; problems are reported, never raised.

    Args:
        store: the run; its folder is read again.
        seed: the stream's seed.
        task: a learned task; None means all, and the files that belong to no task.
        jobs: maximum number of processes; None means one for each core.
        progress: called with the number of certificates checked so far and the total.
    """
    checker = DigestChecker(store.folder, seed)
    survey = Inspection(checker.store, rows=False)
    yield from survey.failed_checks(task)
    links = [link for link in survey.links if task in (None, link.task)]
    yield from check_links(checker, survey, links, jobs=jobs, progress=progress)
    if task is None:
        yield from survey.lost()
        yield from survey.with_seed(survey.pinned()[1], seed, differs=checker.other_seed)


def with_metric(store: Store, check: TaskCheck) -> TaskCheck:
    """Add a finding if the code of the task's own metric is missing or differs; predictions do not need this code."""
    with suppress(StoreError):
        if store.has(check.task) and (code := (certificate := store.certificate(check.task)).metric_code):
            problem = code_problem(certificate.metric, code)
            if problem is not None and not any(problem in known for known in check.problems):
                finding = Finding(message=f"task {check.task!r}: {problem}", unchecked="score")
                return replace(check, findings=(*check.findings, finding))
    return check
