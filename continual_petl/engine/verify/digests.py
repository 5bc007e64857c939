"""Verify files, digests and the chain of a whole run without running a bank: neither backbone nor torch is needed.

This takes a fraction of the time of a full verification and finds every change of a file, but only a full verification
shows that the banks also give the same outputs on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from continual_petl.errors import StoreError
from continual_petl.heads.metric_code import code_problem
from continual_petl.seeding import derive_seed
from continual_petl.store.certificate.finding import Finding, TaskCheck
from continual_petl.store.inspect import Inspection, failed_check
from continual_petl.store.store import Store
from continual_petl.store.verify.certificate import check_task

OnProgress = Callable[[int, int], None]
"""Called with the number of certificates checked so far and the total."""


def verify_digests(
    store: Store, seed: int, task: str | None = None, *, progress: OnProgress | None = None
) -> Iterator[TaskCheck]:
    """Check the files of one task or of all tasks; problems are reported, never raised.

    Args:
        store: the run; its folder is read again.
        seed: the stream's seed.
        task: a learned task; None means all, and the files that belong to no task.
        progress: see `OnProgress`.
    """
    fresh, seeds = Store(store.folder), set[bool]()
    survey = Inspection(fresh)

    def checked(name: str) -> TaskCheck:
        try:
            seeds.add(fresh.certificate(name).seed == derive_seed(seed, name))
        except StoreError as error:
            return failed_check(name, str(error))
        return check_task(fresh, name, None, probe=False)

    def checks() -> Iterator[TaskCheck]:
        for number, commit in enumerate(commits, 1):
            check = fresh.consistently(partial(checked, commit.task), commit.task)
            if progress is not None:
                progress(number, len(commits))
            yield check

    yield from survey.failed_checks(task)
    commits = [commit for commit in survey.commits if task in (None, commit.task)]
    yield from survey.verdicts(commits, checks())
    if task is None:
        yield from survey.unfinished()
        yield from survey.with_seed(survey.pinned()[1], seed, differs=False in seeds)


def with_metric(store: Store, check: TaskCheck) -> TaskCheck:
    """Add a finding if the code of the task's own metric is missing or differs; predictions do not need this code."""
    with suppress(StoreError):
        if store.has(check.task) and (code := (certificate := store.certificate(check.task)).metric_code):
            problem = code_problem(certificate.metric, code)
            if problem is not None and not any(problem in known for known in check.problems):
                finding = Finding(message=f"task {check.task!r}: {problem}", unchecked="score")
                return replace(check, findings=(*check.findings, finding))
    return check
