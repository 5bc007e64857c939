"""Learn many tasks at once: workers train tasks in parallel, and one process commits them in the order of the stream.

A bank depends only on its task, not on when it was learned or on which tasks were learned at the same time: the resulting
store is the same as after a run in one process, bit for bit. A task that needs earlier ones (``start_from``, ``fuse``,
``scope: shared``) waits for them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

from continual_petl.banks.config.spec import AUTO, named_parents
from continual_petl.engine.parallel.processes import IN_A_SCRIPT, WorkerDied
from continual_petl.engine.parallel.worker import Report, commit_staged
from continual_petl.engine.session import Session
from continual_petl.engine.signals import StopRequest
from continual_petl.engine.task.finish_task import finish_task
from continual_petl.errors import Interrupted
from continual_petl.streams.schema.stream_spec import TaskSpec

_POLL = 0.2
"""Seconds between two checks for a stop request."""
_log = logging.getLogger(__name__)


class Workers(Protocol):
    """Workers that learn tasks outside this process."""

    jobs: int
    """Number of tasks learned at once."""
    retries: int
    """How many times a task is resumed from its last checkpoint when its worker dies."""
    stopping: bool
    """Whether `stop` or `kill` was called."""

    def learn(self, task: str) -> Report:
        """Learn a task, and return once it is staged, was stopped or has failed; called from several threads.

        Raises:
            WorkerDied: if its worker was killed.
        """

    def stop(self) -> None:
        """Ask all running workers to save and end."""

    def kill(self) -> None:
        """End all workers at once."""

    def close(self) -> None:
        """Release all workers; they must be idle."""


def learn_in_parallel(session: Session, tasks: Sequence[TaskSpec], workers: Workers) -> None:
    """Learn tasks in workers, and commit each one here once all tasks before it in the stream have been committed.

    A failed task is reported when its turn comes, after all tasks before it have been committed, as in a sequential run. The
    progress of the other tasks is saved, and the next run resumes from it.

    Raises:
        Interrupted: after a signal, once all workers have saved; or if a task's worker was killed too often.
    """
    with ThreadPoolExecutor(workers.jobs) as threads:
        reports: dict[str, Future[Report]] = {}
        try:
            # Workers only compare their backbone with the pinned one, and never pin it themselves.
            session.store.write_backbone(session.backbone(tasks[0]))
            needs = needed(session, tasks)
            for number, task in enumerate(tasks):
                committed = {earlier.name for earlier in tasks[:number]}
                for each in tasks[number:]:
                    if each.name not in reports and needs[each.name] <= committed:
                        reports[each.name] = threads.submit(persisted, workers, each.name)
                report = _awaited(reports[task.name], task.name, session.request)
                report.raise_error()
                finish_task(session, task.name, commit_staged(session, task, report.notices))
        except KeyboardInterrupt:
            workers.kill()
            raise
        finally:
            end_all(workers, list(reports.values()))


def needed(session: Session, tasks: Sequence[TaskSpec]) -> dict[str, set[str]]:
    """Return, for each task, which other tasks have to be committed before it can begin.

    A task whose bank starts from other banks, or reads them, waits for their tasks if they come earlier in the stream; with
    ``start_from: auto``, it waits for all earlier tasks. A task with a shared bank waits for the previous task that shares
    it: tasks with a shared bank are learned one after the other, in parallel with all other tasks.
    """
    needs: dict[str, set[str]] = {}
    shared: set[str] = set()
    for task in tasks:
        choice = task.bank or session.spec.bank
        # With auto, a task may start from any earlier bank.
        starts = (
            needs.keys() if choice.start_from == AUTO else {*named_parents(choice.start_from), *(choice.fuse or ())}
        )
        needs[task.name] = needs.keys() & starts
        if session.bank(task).scope == "shared":
            needs[task.name] |= shared
            shared = {task.name}
    return needs


def persisted(workers: Workers, task: str) -> Report:
    """Let a worker learn a task; if the worker dies, resume from the last checkpoint, up to ``workers.retries`` times."""
    began = True
    for attempt in range(1 + workers.retries):
        try:
            report, began = workers.learn(task), True
        except WorkerDied as death:
            began = death.began
            report = Report(task=task, state="stopped")
        if workers.stopping or report.state != "stopped":
            if report.state == "failed" and not workers.stopping:
                _log.warning("task %r failed; the run ends once all tasks before it in the stream are committed.", task)
            return report
        if attempt < workers.retries:
            how = "was killed" if began else "ended before it could begin"
            _log.warning("task %r: its worker %s; the task resumes from its last checkpoint in a new one.", task, how)
    what = "its worker was killed" if began else "its worker ended before it could begin (see any errors above)"
    message = (
        f"task {task!r}: {what} {1 + workers.retries} times. The usual cause is a lack of memory: "
        f"each worker holds its own backbone, so try fewer --jobs or a smaller batch_size. ({IN_A_SCRIPT}) The progress of "
        "the other tasks is saved, and the same command resumes."
    )
    return Report(task=task, state="failed", error=Interrupted.__name__, message=message)


def _awaited(report: Future[Report], task: str, request: StopRequest) -> Report:
    """Wait for a task; raise `Interrupted` if a stop is requested in the meantime."""
    while not wait([report], timeout=_POLL).done:
        request.stop_here(f"while task {task!r} and those after it were being learned; their progress is saved")
    request.stop_here(f"before task {task!r} was committed; its progress is saved")
    return report.result()


def end_all(workers: Workers, reports: list[Future[Report]]) -> None:
    """Stop running workers, and wait until they have saved; another signal in the meantime ends them at once."""
    left = [report for report in reports if not report.cancel() and not report.done()]
    try:
        if left:
            workers.stop()
            wait(left)
    except BaseException:
        workers.kill()
        raise
    finally:
        workers.close()
