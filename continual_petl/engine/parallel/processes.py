"""Worker processes on this machine: Python process pools of one process each.

When a pool's process is killed, the whole pool ends without revealing which task it was learning. With one pool per process,
the task is known and the other pools continue. Processes are spawned: a forked one would inherit locks that torch's threads
hold.

A worker imports this module first, so nothing heavy is imported here: the worker has to handle Ctrl-C and the end of the run
before it spends seconds on importing torch.
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
from typing import TYPE_CHECKING, Any

from continual_petl._process import pause_collection, resume_collection
from continual_petl.errors import InputError

if TYPE_CHECKING:
    from continual_petl.engine.session import ProcessSettings

_OTHER_LAUNCHERS = ("SLURM_", "TORCHELASTIC_", "LSB_")
IN_A_SCRIPT = (
    'In a script of your own, put learn(...) under `if __name__ == "__main__":`, and callbacks in a file that can be '
    "imported; otherwise no process can start."
)
"""What else may keep processes from starting, to end a message."""
_work: Callable[[Any], Any] | None = None
"""What a worker process does with what it is given; None in any other process."""


class WorkerDied(RuntimeError):
    """A worker process ended unexpectedly.

    Args:
        began: whether it had already opened the run.
    """

    def __init__(self, *, began: bool = True) -> None:
        super().__init__()
        self.began = began


class Slot:
    """A slot for one worker process, which is started when needed, and restarted if it was killed.

    Args:
        setup: opens, in the process, what it will work on.
        environment: environment variables of the process.
    """

    def __init__(self, setup: ProcessSettings, environment: dict[str, str] | None = None) -> None:
        self._setup, self._environment = setup, environment or {}
        self._pool: ProcessPoolExecutor | None = None
        self._opened: Future[str] | None = None
        self._pid: int | None = None

    def start(self) -> None:
        """Start the process without waiting for it to be ready.

        Raises:
            WorkerDied: if the system cannot start a process.
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
            # Ask for the process id before torch is imported, so that a process can be ended even while it is still starting.
            pool.submit(os.getpid).add_done_callback(self._record_pid)
            self._opened = pool.submit(_open, self._setup)
        except (OSError, BrokenProcessPool) as error:
            pool.shutdown(wait=True, cancel_futures=True)
            raise WorkerDied(began=False) from error
        self._pool = pool

    def _record_pid(self, pid: Future[int]) -> None:
        with suppress(BrokenProcessPool, CancelledError):
            self._pid = pid.result()

    def submit(self, what: Any) -> Future[Any]:
        """Give the process something to work on; see `ProcessSettings.opened`.

        Raises:
            WorkerDied: if it cannot be started, or was killed since the last call.
            InputError: if it cannot open the run.
        """
        self.start()
        assert self._pool is not None
        assert self._opened is not None
        try:
            problem = self._opened.result()
            if problem:
                raise InputError(problem)
            return self._pool.submit(_act, what)
        except (BrokenProcessPool, CancelledError) as error:
            began = self._opened.done() and not self._opened.cancelled() and self._opened.exception() is None
            self.close()
            raise WorkerDied(began=began) from error

    def result(self, future: Future[Any]) -> Any:
        """Wait for the result of `submit`.

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
        """End the process after its current task."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
        self._pid = None


class Processes:
    """Learns tasks in worker processes; implements `Workers`.

    Args:
        setup: describes the run to the workers.
        jobs: number of processes.
    """

    retries = 2

    def __init__(self, setup: ProcessSettings, jobs: int) -> None:
        self.jobs = jobs
        self._slots = [Slot(setup) for _ in range(jobs)]
        self._free: SimpleQueue[Slot] = SimpleQueue()
        for slot in self._slots:
            self._free.put(slot)
        self.stopping = False

    def learn(self, task: Any) -> Any:
        """Learn a task in a free process, and return its report; or whatever the setup opens for it."""
        slot = self._free.get()
        try:
            if self.stopping:
                raise WorkerDied  # no new process is started for this task
            future = slot.submit(task)
            if self.stopping:
                slot.signal(signal.SIGTERM)  # this process was still starting when the others were stopped
            return slot.result(future)
        finally:
            self._free.put(slot)

    def stop(self) -> None:
        """Ask all running workers to save and end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End all processes at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        self.stopping = True
        for slot in self._slots:
            slot.signal(number)

    def close(self) -> None:
        """End all processes; they must be idle."""
        for slot in self._slots:
            slot.close()


def is_being_started() -> bool:
    """Return whether this process is still being started by another one, and is importing that process's script."""
    # Python itself uses this attribute to refuse to start processes during such an import.
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def _begin(environment: dict[str, str]) -> None:
    # Ctrl-C in a terminal reaches all processes; the run passes it on as SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_the_parent()
    if environment:
        # Otherwise Lightning would take rank and number of processes from the first environment that it detects.
        for name in [name for name in os.environ if name.startswith(_OTHER_LAUNCHERS)]:
            del os.environ[name]
        os.environ.update(environment)
    pause_collection()


def _open(setup: ProcessSettings) -> str:
    """Open in this worker process what it will work on; return an error message, or an empty string."""
    global _work
    # To receive this call, the process has imported the module of the setup, which takes seconds.
    resume_collection()
    try:
        _work = setup.opened((signal.SIGTERM,))
    except InputError as error:
        return str(error)
    except Exception as error:  # whatever it is, the run has to hear of it
        return f"a worker cannot open the run: {type(error).__name__}: {error}"
    return ""


def _act(what: Any) -> Any:
    assert _work is not None
    return _work(what)


def _end_with_the_parent() -> None:
    """End this process when the main process is killed: it must not write alongside the workers of the next run."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
