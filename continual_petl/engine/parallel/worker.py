"""A worker process: it learns tasks for the run that started it, and leaves committing to that run.

A worker writes only to the progress folder of its task, so the run that started it is the store's only writer. Results are
reported as plain values: an exception with extra arguments could not be pickled.
"""

from __future__ import annotations

import copy
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

import lightning as L

from continual_petl.callbacks import StreamCallback
from continual_petl.engine.parallel.staging import stage
from continual_petl.engine.session import ProcessSettings, Session
from continual_petl.engine.signals import StopRequest
from continual_petl.engine.task.learn_task import fit_share, learn_bank
from continual_petl.errors import (
    DivergedError,
    ForgettingError,
    InputError,
    Interrupted,
    IsolationError,
    MemoryRanOutError,
    StoreError,
)
from continual_petl.store.store import Store
from continual_petl.streams.schema.stream_spec import TaskSpec

# Subclasses come before their base classes.
_ERRORS = {
    kind.__name__: kind
    for kind in (ForgettingError, IsolationError, StoreError, DivergedError, MemoryRanOutError, InputError)
}


@dataclass(frozen=True, kw_only=True)
class RunSetup(ProcessSettings):
    """Everything that a worker needs to know about the run."""

    callbacks: tuple[L.Callback, ...]
    """Callbacks of the fit, in the initial state that every task starts with."""
    reads_test: bool = True
    """Whether test splits are read."""
    discards_progress: bool = False
    """Whether saved progress may be discarded; see `Session`."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The outcome of one task."""

    task: str
    state: Literal["learned", "stopped", "failed"]
    error: str = ""
    """Name of the error's class."""
    message: str = ""
    notices: tuple[str, ...] = ()
    digest: str = ""
    """Digest of the bank, if several processes shared the fit."""

    def raise_error(self) -> None:
        """Raise the worker's error again if the worker failed."""
        if self.state != "failed":
            return
        if self.error == Interrupted.__name__:
            raise Interrupted(self.message, signal.SIGKILL)
        raise _ERRORS.get(self.error, RuntimeError)(self.message)


def setup_of(session: Session, callbacks: tuple[L.Callback, ...]) -> RunSetup:
    """Return everything that workers need to know to learn as this process would.

    Args:
        session: the run.
        callbacks: the callbacks. A `StreamCallback` is not sent; its `for_worker` returns the callback to send instead.
    """
    sent = [callback.for_worker() if isinstance(callback, StreamCallback) else callback for callback in callbacks]
    return RunSetup.here(
        session.folder,
        session.spec,
        callbacks=tuple(each for each in sent if each is not None),
        reads_test=session.reads_test,
        discards_progress=session.discards_progress,
    )


class Worker:
    """A worker's open run; the backbone stays loaded from task to task.

    Args:
        setup: describes the run to the workers.
        signals: the signals that ask the worker to stop.
    """

    def __init__(self, setup: RunSetup, signals: tuple[int, ...]) -> None:
        setup.enter("run", "stream.yaml")
        self._setup, self._signals = setup, signals
        self._session = Session(setup.spec, Store(Path(setup.folder)), reads_test=setup.reads_test)
        self._session.discards_progress = setup.discards_progress

    def learn(self, task: str) -> Report:
        """Learn a task and stage its bank in its progress folder, ready to be committed."""

        def act(request: StopRequest) -> Report:
            learned = learn_bank(self._session, self._task(task), self._callbacks(), request)
            stage(self._session.store, learned)
            return Report(task=task, state="learned", notices=learned.lost)

        return self._reported(task, act)

    def fit(self, task: str) -> Report:
        """Take part in the fit of a task; the environment determines this process's rank."""

        def act(request: StopRequest) -> Report:
            digest = fit_share(self._session, self._task(task), self._callbacks(), request)
            return Report(task=task, state="learned", digest=digest)

        return self._reported(task, act)

    def _task(self, name: str) -> TaskSpec:
        return next(task for task in self._setup.spec.tasks if task.name == name)

    def _callbacks(self) -> list[L.Callback]:
        return copy.deepcopy(list(self._setup.callbacks))

    def _reported(self, task: str, act: Callable[[StopRequest], Report]) -> Report:
        def listening() -> Report:
            with _listening(self._signals) as request:
                return act(request)

        return reported(task, f"task {task!r}", listening)


def reported(task: str, what: str, act: Callable[[], Report]) -> Report:
    """Return the report of ``act``, or a report of the error that it raised.

    Args:
        task: the task's name in the report.
        what: description of what is learned, for the message about an unexpected error.
        act: the function that learns the task.
    """
    try:
        return act()
    except Interrupted:
        return Report(task=task, state="stopped")
    except tuple(_ERRORS.values()) as error:
        kind = next(name for name, each in _ERRORS.items() if isinstance(error, each))
        return Report(task=task, state="failed", error=kind, message=str(error))
    except Exception:
        message = f"{what}: the process that learned it failed:\n{traceback.format_exc()}"
        return Report(task=task, state="failed", error="RuntimeError", message=message)


@contextmanager
def _listening(signals: tuple[int, ...]) -> Iterator[StopRequest]:
    """Treat these signals as a request to save and end. Further signals are ignored.

    A signal sent to a whole process group arrives twice: from its sender and from the main process. To end a worker at once,
    send two signals to the main process.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if number in signals and request.signal_number is None:
            request.receive(number)

    request.handlers = dict.fromkeys((signal.SIGINT, signal.SIGTERM), handle)
    before = {number: signal.signal(number, handle) for number in request.handlers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
