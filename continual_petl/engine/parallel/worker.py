"""A worker process: it learns tasks for the run that started it, and leaves committing to that run.

A worker writes only to the progress folder of its task, so the run that started it is the store's only writer. A learned bank
waits there in a store of its own (`stage`), which is read as strictly as any other and removed when the task is finished; the
main process commits the bank as usual (`commit_staged`): it adds it to the chain, and computes the probe's outputs itself.
Results are reported as plain values: an exception with extra arguments could not be pickled.
"""

from __future__ import annotations

import copy
import logging
import shutil
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import lightning as L
from typing_extensions import override

from continual_petl.callbacks import StreamCallback
from continual_petl.engine.changed_settings import plan_again
from continual_petl.engine.session import ProcessSettings, Session
from continual_petl.engine.task.learn_task import commit_bank, fit_share, learn_bank, learn_task, notify_start
from continual_petl.errors import (
    DivergedError,
    ForgettingError,
    InputError,
    Interrupted,
    IsolationError,
    MemoryRanOutError,
    StoreError,
)
from continual_petl.store.certificate.environment import current_environment
from continual_petl.store.certificate.values import as_tensors
from continual_petl.store.commit import TrainedBank, commit_task
from continual_petl.store.ledger.lines import FinishedLine
from continual_petl.store.store import Store
from continual_petl.store.verify.probe_file import certified_probe
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
    shares_fits: bool = False
    """Whether the process takes part in the fit of each task, instead of learning tasks of its own."""

    @override
    def opened(self, signals: tuple[int, ...]) -> Callable[[str], Report]:
        """Open the run in this process, whose backbone then stays loaded from task to task."""
        self.enter("run", "stream.yaml")
        session = Session(self.spec, Store(Path(self.folder)), reads_test=self.reads_test)
        session.discards_progress = self.discards_progress

        def work(task: str) -> Report:
            with session.learning(copy.deepcopy(self.callbacks), first_of=signals):
                return (_fitted if self.shares_fits else _learned)(session, task)

        return lambda task: reported(task, f"task {task!r}", partial(work, task))


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


def setup_of(session: Session) -> RunSetup:
    """Return everything that workers need to know to learn as this process would.

    A `StreamCallback` is not sent; its `for_worker` returns the callback to send instead.
    """
    given = session.callbacks
    sent = [callback.for_worker() if isinstance(callback, StreamCallback) else callback for callback in given]
    return RunSetup.here(
        session.folder,
        session.spec,
        callbacks=tuple(each for each in sent if each is not None),
        reads_test=session.reads_test,
        discards_progress=session.discards_progress,
    )


def _learned(session: Session, task: str) -> Report:
    """Learn a task and stage its bank in its progress folder, ready to be committed."""
    learned = learn_bank(session, session.task(task))
    stage(session.store, learned)
    return Report(task=task, state="learned", notices=learned.lost)


def _fitted(session: Session, task: str) -> Report:
    """Take part in the fit of a task; the environment determines this process's rank."""
    return Report(task=task, state="learned", digest=fit_share(session, session.task(task)))


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
    except Exception:  # whatever a callback, Lightning or torch raised, the run has to hear of it
        message = f"{what}: the process that learned it failed:\n{traceback.format_exc()}"
        return Report(task=task, state="failed", error="RuntimeError", message=message)


_log = logging.getLogger(__name__)


def stage(store: Store, learned: TrainedBank) -> None:
    """Stage a learned bank for the process that commits."""
    task = learned.plan.task
    staged = _staged(store, task)
    shutil.rmtree(staged.folder, ignore_errors=True)
    commit_task(staged, learned, run=store)
    seal, seconds = staged.commit(task).seal, dict(learned.seconds)
    staged.append([FinishedLine(task=task, index=0, certificate=seal, seconds=seconds)])


def commit_staged(session: Session, task: TaskSpec, lost: tuple[str, ...]) -> dict[str, float]:
    """Commit the bank that a worker staged.

    On a different processor or with different software, a worker may have computed outputs whose bits differ from those of
    this process, which certifies them. In that case, the learned bank predicts all rows again here. If it learned with
    other settings (another version of a file that the stream names), its progress is not used without permission.

    Args:
        session: the run.
        task: the learned task.
        lost: the worker's notices about its attempt; see `TrainedBank`.

    Returns:
        Seconds by phase.
    """
    staged, backbone = _staged(session.store, task.name), session.backbone(task)
    certificate = staged.certificate(task.name)
    here = current_environment(backbone.model.device, backbone.precision, backbone.attention)
    settings = certificate.differs(plan_again(session, task, certificate))
    differences = [f"{name} was {there!r:.80}, is {own!r:.80}" for name, (there, own) in settings.items()]
    differences += certificate.environment.differences(here)
    if differences:
        _log.warning(
            "task %r: its worker's settings or environment differ from those of this process (%s): its rows are predicted "
            "again here.",
            task.name, "; ".join(differences),
        )  # fmt: skip
        return learn_task(session, task)
    probe, _ = certified_probe(staged, task.name)
    notify_start(session, task.name, (*certificate.notices, *lost))
    seconds = next(line.seconds for line in staged.results() if isinstance(line, FinishedLine))
    learned = TrainedBank(
        plan=certificate,
        reads=certificate.reads,
        bank=staged.load_bank(task.name, backbone, run=session.store),
        backbone=backbone,
        probe=probe,
        history=staged.history(task.name),
        router=None if (sums := staged.router_sums(task.name)) is None else as_tensors(sums),
        seconds=seconds,
        lost=lost,
    )
    return commit_bank(session, learned)


def _staged(store: Store, task: str) -> Store:
    return Store(store.progress_folder(task) / "learned")
