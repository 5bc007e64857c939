"""Workers on this machine: Python's own process pools, of one process each.

A pool ends as a whole when one of its processes is killed, and does not say which task that was. One pool for each process
does, and leaves the others alone. Processes are spawned: a forked one would inherit locks that threads of torch hold.

A worker imports this module first, so nothing heavy is imported here: it minds Ctrl-C and the end of the course before it
spends seconds on torch.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import connection
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from continual_petl.errors import InputError

if TYPE_CHECKING:
    from continual_petl.course.worker import Brief, Report, Worker

_What = TypeVar("_What")
_Found = TypeVar("_Found")
_OTHER_LAUNCHERS = ("SLURM_", "TORCHELASTIC_", "LSB_")
_worker: Worker | None = None
"""Of a worker process."""


class WorkerDied(RuntimeError):
    """A worker process ended without a word.

    Args:
        began: whether it had taken up the course.
    """

    def __init__(self, *, began: bool = True) -> None:
        super().__init__()
        self.began = began


class Slot:
    """A place for one worker process, which is started when it is needed, and again after it was killed.

    Args:
        brief: the course.
        environment: environment variables of the process.
        opening: takes up the course there; returns what went wrong, or nothing. Left out: that of a stream.
    """

    def __init__(
        self,
        brief: Any,
        environment: dict[str, str] | None = None,
        *,
        opening: Callable[[Any], str] | None = None,
    ) -> None:
        self._brief, self._environment, self._opening = brief, environment or {}, opening or _open
        self._pool: ProcessPoolExecutor | None = None
        self._opened: Future[str] | None = None
        self._pid: int | None = None

    def start(self) -> None:
        """Start the process, and do not wait until it has begun.

        Raises:
            WorkerDied: if the system starts no process.
        """
        if self._pool is not None:
            return
        pool = ProcessPoolExecutor(
            1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(self._environment,),
        )
        try:
            # Known before torch is imported, so that one that is being started can be ended too.
            pool.submit(os.getpid).add_done_callback(self._answered)
            self._opened = pool.submit(self._opening, self._brief)
        except (OSError, BrokenProcessPool) as error:
            pool.shutdown(wait=True, cancel_futures=True)
            raise WorkerDied(began=False) from error
        self._pool = pool

    def _answered(self, pid: Future[int]) -> None:
        with suppress(BrokenProcessPool, CancelledError):
            self._pid = pid.result()

    def submit(self, act: Callable[[_What], _Found], what: _What) -> Future[_Found]:
        """Have the process do something.

        Raises:
            WorkerDied: if it cannot be started, or was killed since the last time.
            InputError: if it cannot take up the course.
        """
        self.start()
        assert self._pool is not None
        assert self._opened is not None
        try:
            problem = self._opened.result()
            if problem:
                raise InputError(problem)
            return self._pool.submit(act, what)
        except (BrokenProcessPool, CancelledError) as error:
            began = self._opened.done() and not self._opened.cancelled() and self._opened.exception() is None
            self.close()
            raise WorkerDied(began=began) from error

    def result(self, future: Future[_Found]) -> _Found:
        """Wait for what `submit` began.

        Raises:
            WorkerDied: if the process was killed.
        """
        try:
            return future.result()
        except BrokenProcessPool as error:
            self.close()
            raise WorkerDied from error

    def signal(self, number: int) -> None:
        """Send a signal to the process, if there is one."""
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def close(self) -> None:
        """End the process when it has done what it does."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
        self._pid = None


class Processes:
    """Learns tasks in worker processes; satisfies `Elsewhere`.

    Args:
        brief: the course.
        jobs: number of processes.
        opening: takes up the course in a process; see `Slot`.
        act: what a process does about a task. Left out: it learns the task of that name.
    """

    retries = 2

    def __init__(
        self,
        brief: Any,
        jobs: int,
        *,
        opening: Callable[[Any], str] | None = None,
        act: Callable[[str], Report] | None = None,
    ) -> None:
        self.jobs = jobs
        self._act = act or learn_here
        self._slots = [Slot(brief, opening=opening) for _ in range(jobs)]
        self._free: SimpleQueue[Slot] = SimpleQueue()
        for slot in self._slots:
            self._free.put(slot)
        self.stopping = False

    def learn(self, task: str) -> Report:
        """Learn a task in a process that is free."""
        slot = self._free.get()
        try:
            if self.stopping:
                raise WorkerDied  # none is started for it any more
            future = slot.submit(self._act, task)
            if self.stopping:
                slot.signal(signal.SIGTERM)  # it was being started when the others were told
            return slot.result(future)
        finally:
            self._free.put(slot)

    def stop(self) -> None:
        """Ask all that are learning to save and end."""
        self.stopping = True
        for slot in self._slots:
            slot.signal(signal.SIGTERM)

    def kill(self) -> None:
        """End all processes at once."""
        self.stopping = True
        for slot in self._slots:
            slot.signal(signal.SIGKILL)

    def close(self) -> None:
        """End all processes, which have nothing to do any more."""
        for slot in self._slots:
            slot.close()


def learn_here(task: str) -> Report:
    """Learn a task in this worker process."""
    assert _worker is not None
    return _worker.learn(task)


def fit_here(task: str) -> Report:
    """Take part in the fit of a task in this worker process."""
    assert _worker is not None
    return _worker.fit(task)


def is_being_started() -> bool:
    """Return whether this is a process that Python is starting for another one, whose script it imports now."""
    # As Python itself asks, before it refuses to start processes here.
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def _begin(environment: dict[str, str]) -> None:
    # Ctrl-C in a terminal reaches all processes; what is to be done about it, the course says by SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_the_course()
    if environment:
        # Lightning would ask the first of them that it finds for rank and number of processes.
        for name in [name for name in os.environ if name.startswith(_OTHER_LAUNCHERS)]:
            del os.environ[name]
        os.environ.update(environment)


def _open(brief: Brief) -> str:
    """Take up the course in this worker process; return what went wrong, or nothing."""
    global _worker
    try:
        from continual_petl.course.worker import Worker

        _worker = Worker(brief, (signal.SIGTERM,))
    except InputError as error:
        return str(error)
    except Exception as error:
        return f"a worker cannot take up the course: {type(error).__name__}: {error}"
    return ""


def _end_with_the_course() -> None:
    """End this process when the course is killed: it must not write beside the next one's workers."""
    course = multiprocessing.parent_process()
    assert course is not None

    def watch() -> None:
        connection.wait([course.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
