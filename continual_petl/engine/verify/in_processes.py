"""Check many certificates in several processes: this process begins, and starts others if the remaining checks would take
long.

The processes take tasks from one queue. If a process ends early or cannot start, its tasks go back into the queue and this
process checks them, so a verdict never depends on whether another process works.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Protocol

from continual_petl.engine.parallel.processes import Slot, is_being_started
from continual_petl.errors import InputError
from continual_petl.store.certificate.chain import Link
from continual_petl.store.certificate.finding import TaskCheck
from continual_petl.store.inspect import Inspection

OnProgress = Callable[[int, int], None]
"""Called with the number of certificates checked so far and the total."""

_AT_A_TIME = 8


class Checks(Protocol):
    """Checks tasks one by one, and prepares other processes to do the same."""

    worth_s: float
    """Other processes are started only if the remaining checks would take this process alone longer than this, in seconds."""
    other_seed: bool
    """Whether a certificate has a different seed from the stream."""

    def check(self, task: str, *, in_chain: bool = True) -> TaskCheck:
        """Check one task; ``in_chain``: whether its certificate continues the chain."""

    def most_jobs(self) -> int:
        """Return how many processes are worth starting, this one included."""

    def divide(self, jobs: int) -> Callable[[], Checks]:
        """Share this process's threads with others, until `alone` is called.

        Returns:
            A function, sent by pickle, that makes a checker in another process.
        """

    def alone(self) -> None:
        """Use all threads again."""


_checker: Checks | None = None
"""The checker of a worker process; None in the process that verifies."""


def check_links(
    checker: Checks,
    survey: Inspection,
    links: Sequence[Link],
    *,
    jobs: int | None,
    progress: OnProgress | None,
) -> Iterator[TaskCheck]:
    """Yield the checks of learned tasks, with the chain's findings; tasks that were dropped meanwhile are left out."""
    checks = check_in_processes(
        checker,
        [link.task for link in links],
        jobs=jobs,
        in_chain=lambda name: name not in survey.broken,
        progress=progress or (lambda done, total: None),
    )
    for link, check in zip(links, checks, strict=True):
        if check.ok or not survey.was_dropped(link):
            yield survey.placed(link, check)


def check_in_processes(
    checker: Checks,
    tasks: Sequence[str],
    *,
    jobs: int | None,
    in_chain: Callable[[str], bool],
    progress: OnProgress,
) -> list[TaskCheck]:
    """Return one check per task, in the order of ``tasks``.

    Args:
        checker: the checker of this process.
        tasks: names of learned tasks.
        jobs: maximum number of processes, this one included; None: as many as the checker finds worth starting.
        in_chain: returns whether a task's certificate continues the chain.
        progress: called after every few tasks.

    Raises:
        InputError: if ``jobs`` is less than 1, or if this process is itself a worker that is still importing the main script.
    """
    _check_jobs(jobs)
    chunks = {n: [(t, in_chain(t)) for t in tasks[n : n + _AT_A_TIME]] for n in range(0, len(tasks), _AT_A_TIME)}
    todo, done = deque(chunks), SimpleQueue[tuple[int, list[TaskCheck] | None]]()
    by_chunk: dict[int, list[TaskCheck]] = {}
    helpers: list[_Helper] = []
    began = time.monotonic()
    try:
        while len(by_chunk) < len(chunks):
            number = _next(todo)
            if number is not None:
                by_chunk[number] = [checker.check(task, in_chain=whole) for task, whole in chunks[number]]
            while not done.empty() or (number is None and len(by_chunk) < len(chunks)):
                chunk, checks = done.get()
                if checks is None:
                    todo.append(chunk)
                    break
                by_chunk[chunk] = checks
            num_checked = sum(map(len, by_chunk.values()))
            progress(num_checked, len(tasks))
            rest = (time.monotonic() - began) / num_checked * (len(tasks) - num_checked) if num_checked else 0.0
            if (
                not helpers
                and rest > checker.worth_s
                and (num_jobs := checker.most_jobs() if jobs is None else jobs) > 1
            ):
                make = checker.divide(num_jobs)
                helpers = [_Helper(make, chunks, todo, done) for _ in range(num_jobs - 1)]
    except BaseException:
        for helper in helpers:
            helper.kill()
        raise
    finally:
        checker.alone()
        for helper in helpers:
            helper.join()
    checker.other_seed |= any(helper.other_seed for helper in helpers)
    return [check for number in chunks for check in by_chunk[number]]


def _check_jobs(jobs: int | None) -> None:
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs: got {jobs}; the number of processes must be at least 1.")
    if jobs != 1 and is_being_started():
        raise InputError(
            "jobs: a process that verifies imports the script that started it, and would start verifying again: put "
            'run.verify(...) under `if __name__ == "__main__":`, or use jobs=1.'
        )


def _next(todo: deque[int]) -> int | None:
    try:
        return todo.popleft()
    except IndexError:
        return None


class _Helper:
    """Another process, with the thread that feeds it tasks."""

    def __init__(
        self,
        make: Callable[[], Checks],
        chunks: dict[int, list[tuple[str, bool]]],
        todo: deque[int],
        done: SimpleQueue[tuple[int, list[TaskCheck] | None]],
    ) -> None:
        self._slot = Slot(make, opening=_open)
        self._chunks, self._todo, self._done = chunks, todo, done
        self.other_seed = False
        self._killed = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._killed and (number := _next(self._todo)) is not None:
            try:
                checks, other_seed = self._slot.result(self._slot.submit(_check_here, self._chunks[number]))
            except Exception:  # whatever the reason, the parent process checks these tasks itself
                self._done.put((number, None))
                break
            self.other_seed |= other_seed
            self._done.put((number, checks))

    def kill(self) -> None:
        """End the process at once."""
        self._killed = True
        self._slot.signal(signal.SIGKILL)

    def join(self) -> None:
        """Wait until the process has ended."""
        self._thread.join()
        self._slot.close()


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _open(make: Callable[[], Checks]) -> str:
    global _checker
    _checker = make()
    return ""


def _check_here(tasks: Sequence[tuple[str, bool]]) -> tuple[list[TaskCheck], bool]:
    assert _checker is not None
    return [_checker.check(task, in_chain=whole) for task, whole in tasks], _checker.other_seed
