"""The course: the tasks of a stream, one after the other, into one store."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import lightning as L

from continual_petl.callbacks import Dashboard, LiveProgress, NoForgetting, Progress, StreamCallback
from continual_petl.course.at_once import learn_at_once
from continual_petl.course.finish_task import finish_task
from continual_petl.course.learn_task import learn_task
from continual_petl.course.pool import Executor, Pool, sharing
from continual_petl.course.preflight import preflight
from continual_petl.course.processes import is_being_started
from continual_petl.course.replacements import begin_replacing, end_replacing
from continual_petl.course.run import Run
from continual_petl.course.session import Session, changed_settings, forgotten_tasks
from continual_petl.course.signals import StopRequest, listening
from continual_petl.errors import InputError
from continual_petl.report.console import is_watched
from continual_petl.store.leftovers import cut_short
from continual_petl.store.position import seconds_so_far
from continual_petl.store.results_file import measured_rows, unfinished
from continual_petl.store.store import Store
from continual_petl.store.stream_seal import begun_with, load_begun, stream_problem
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.stream import TaskStream
from continual_petl.streams.stream_file.dump import contradictions_of, dump_stream, settled


def learn(
    stream: TaskStream,
    run_dir: str | Path,
    *,
    callbacks: Sequence[L.Callback] = (),
    trainer: dict[str, Any] | None = None,
    replace: Collection[str] = (),
    wait: bool = False,
    jobs: int | None = None,
    executor: Executor = "processes",
    test: bool = True,
    progress: bool | None = None,
) -> Run:
    """Learn every task of a stream that the run folder does not have yet.

    A learned task is skipped, a half-learned one goes on from its checkpoint. `NoForgetting` always watches; give your
    own to set its policy.

    Args:
        stream: the tasks.
        run_dir: the run folder; created if it does not exist.
        callbacks: Lightning callbacks, or `StreamCallback` to hear of tasks too. What a Lightning callback says it
            remembers of a fit (its ``state_dict``: EarlyStopping's best score, say) is put back for every task, so that no
            task depends on those before it; a `StreamCallback` remembers across tasks.
        trainer: arguments for Lightning's Trainer, over those of the stream.
        replace: learned tasks that are learned again, as the stream describes them now. The old bank stays until the new
            one is committed; then a tombstone takes its place, and the task comes last in the order of learning.
        wait: whether to wait for another process that writes to the run folder, instead of raising.
        jobs: number of tasks that are learned at once, each in a process with a backbone of its own; the store ends the same,
            bit for bit. None: one after the other, in this process; with Ray as many as its cluster has room for. Callbacks
            of Lightning are sent there, for each task as they were before the course; of a `StreamCallback` see `for_worker`.
        executor: what learns many tasks at once: ``processes`` of this machine, or ``ray``, on its cluster.
        test: whether test splits are read; without them R holds the validation metric, and no test row decides anything.
        progress: whether standard error shows tasks, epochs, scores and the time that is left. None: if it is a terminal or a
            notebook, and none of the callbacks is a `Progress` already.

    Returns:
        The run: results, verification, predictions.

    Raises:
        InputError: if the stream, its data or the callbacks cannot be used; nothing already learned is touched.
        ForgettingError: if anything learned before has changed.
        StoreError: if the run folder is damaged, or belongs to another backbone.
        RunInUseError: if another process writes to it.
        Interrupted: after Ctrl-C or SIGTERM; calling again goes on.
    """
    pool = Pool(jobs, executor)
    given = stream.spec.begun_with(begun_with(Store(Path(run_dir)).stream_file))
    spec = given.model_copy(update={"trainer": given.trainer | (trainer or {})})
    watching = _watched(callbacks, progress)
    _put_back(Store(Path(run_dir)), wait)
    session = _opened(spec, run_dir, replace, test)
    seen = _state(session.store)
    # A worker's import of a script without a guard would wait for the course that waits for this worker.
    with session.store.lock(wait=wait and not is_being_started()), listening() as request:
        if _state(session.store) != seen:
            # Another process was faster; what it wrote was not looked at.
            session = _opened(spec, run_dir, replace, test)
        session.store.clean()
        session.check_backbone()
        pending, replaced = begin_replacing(session, replace)
        session.replacing = frozenset(pending)
        notices = (
            *replaced,
            *_stream_replaced(session.store),
            *changed_settings(session),
            *forgotten_tasks(session),
            *pool.notices(),
        )
        # What was given in Python only (loggers, strategies) is of this process, not of the stream.
        session.store.write_stream(dump_stream(settled(_kept(session, pending, given.anchored()))))
        with _told(watching, session.store, notices):
            _learn_all(session, watching, request, pending, pool)
        end_replacing(session.store)
    return Run(session.store.folder, session=session)


def _stream_replaced(store: Store) -> list[str]:
    if not store.stream_file.is_file() or stream_problem(store) is None:
        return []
    return [
        f"{store.stream_file} was edited or damaged since it was written; the stream that was given takes its place"
    ]


def _kept(session: Session, replace: Collection[str], spec: StreamSpec) -> StreamSpec:
    """Return what the run folder says from now on: with nothing to learn, later tasks still begin as it said before."""
    learned = set(session.store.tasks).difference(replace)
    anything_new = any(task.name not in learned for task in spec.tasks)
    if anything_new or not session.store.stream_file.is_file() or stream_problem(session.store) is not None:
        return spec
    known = load_begun(session.store.stream_file)
    inherits = known.bank.start_from is not None or spec.bank.start_from is not None
    kept = spec.model_copy(update={"training": known.training, **({} if inherits else {"bank": known.bank})})
    return spec if contradictions_of(kept) else kept


def _learn_all(
    session: Session, watching: list[L.Callback], request: StopRequest, replace: Collection[str], pool: Pool
) -> None:
    """Learn what the store does not have, after what a kill left unfinished."""
    fresh = _Fresh(watching)
    links, lines = session.store.links(), session.store.results()
    committed = unfinished(links, lines)
    rows = measured_rows(links, lines)
    learned = set(session.store.tasks) - set(replace)
    tasks = [task for task in session.spec.tasks if task.name not in learned]
    session.num_new = len(committed) + len(tasks)
    for name in committed:
        trained = seconds_so_far(session.store.progress_folder(name))
        finish_task(session, name, watching, {"train": trained} if trained else {}, request, rows.get(name))
    if pool.is_elsewhere and tasks:
        learn_at_once(session, tasks, watching, request, pool.opened(session, watching, len(tasks)))
        return
    with sharing(session, watching) as ranks:
        for task in tasks:
            # Again right before the commit: what is learned in between cannot be kept if anything is missing.
            session.store.check_complete()
            fresh.restore()
            seconds = learn_task(session, task, watching, request, ranks)
            session.forget_split(task.name)
            finish_task(session, task.name, watching, seconds, request)


def _watched(callbacks: Sequence[L.Callback], progress: bool | None) -> list[L.Callback]:
    """Return the callbacks, `NoForgetting` among them in any case, and what shows progress where that is wanted."""
    if sum(isinstance(callback, Dashboard) for callback in callbacks) > 1:
        raise InputError(
            "callbacks: got more than one Dashboard; each would write over how far the loggers of the other came. Give one, "
            "with all loggers: Dashboard([...])."
        )
    given = any(isinstance(callback, NoForgetting) for callback in callbacks)
    watching = [*callbacks] if given else [*callbacks, NoForgetting()]
    if progress is None:
        progress = is_watched() and not any(isinstance(callback, Progress) for callback in callbacks)
    return [*watching, LiveProgress()] if progress else watching


@contextmanager
def _told(callbacks: Sequence[L.Callback], store: Store, notices: tuple[str, ...]) -> Iterator[None]:
    """Tell the callbacks that the course begins, and that it ends, however it does."""
    watching = [callback for callback in callbacks if isinstance(callback, StreamCallback)]
    stopped: BaseException | None = None
    try:
        told = (*notices, *(notice for callback in watching for notice in callback.notices()))
        for callback in watching:
            callback.on_course_start(told)
        yield
    except BaseException as error:
        stopped = error
        raise
    finally:
        with ExitStack() as ends:  # all of them hear it, whatever one of them raises
            for callback in reversed(watching):
                ends.callback(callback.on_course_end, store, stopped)


def _put_back(store: Store, wait: bool) -> None:
    """Clean a store whose `replace` was cut short: the task to be replaced may be out of its place."""
    if store.folder.is_dir() and cut_short(store) is not None:
        with store.lock(wait=wait):
            store.clean()


def _opened(spec: StreamSpec, run_dir: str | Path, replace: Collection[str], test: bool) -> Session:
    """Return the course, checked before its first step."""
    session = Session(spec, Store(Path(run_dir)), reads_test=test)
    preflight(session, replace)
    return session


def _state(store: Store) -> tuple[bytes | None, list[str]]:
    return store.stream_file.read_bytes() if store.stream_file.is_file() else None, store.tasks


class _Fresh:
    """What Lightning callbacks remembered before the course began."""

    def __init__(self, callbacks: Sequence[L.Callback]) -> None:
        self._states = [
            (callback, copy.deepcopy(state))
            for callback in callbacks
            if not isinstance(callback, StreamCallback) and (state := callback.state_dict())
        ]

    def restore(self) -> None:
        """Make them remember that, and nothing of a task."""
        for callback, state in self._states:
            callback.load_state_dict(copy.deepcopy(state))
