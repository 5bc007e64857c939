"""`learn`: for every task of a stream, a fresh bank, a Trainer, a commit, and a check that nothing before it has changed.

`learn_tasks` opens the run, `_learn_all` is the loop over its tasks; `task.learn_task` learns and commits one of them,
`task.finish_task` measures it and calls callbacks. `learn_into` learns into an existing run folder: one more task, a
stream, or the rest of the run's own stream.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypedDict, Unpack

import lightning as L

from continual_petl.callbacks import LiveProgress, Loggers, Progress, StreamCallback
from continual_petl.callbacks.base import IgnoredSetting
from continual_petl.engine.changed_settings import changed_settings, forgotten_tasks, tasks_without_routing
from continual_petl.engine.checks.changed_tasks import with_task
from continual_petl.engine.checks.preflight import asked_tasks, check_pinned, preflight
from continual_petl.engine.parallel.executors import Executor, Pool, sharing
from continual_petl.engine.parallel.processes import is_being_started
from continual_petl.engine.parallel.scheduler import learn_in_parallel
from continual_petl.engine.session import Session
from continual_petl.engine.task.finish_task import finish_committed, finish_task
from continual_petl.engine.task.learn_task import learn_task
from continual_petl.engine.task.resume import begin_replacing, end_replacing
from continual_petl.errors import InputError, check_names, did_you_mean, raise_problems
from continual_petl.report.console import is_watched
from continual_petl.store.folder.stream_seal import check_stream, stream_problem
from continual_petl.store.open_run import check_local, open_store
from continual_petl.store.store import Store
from continual_petl.streams.schema.consistency import contradictions
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.stream import TaskStream, check_is_stream
from continual_petl.streams.stream_file.dump import contradictions_of, dump_stream, without_unused_settings
from continual_petl.streams.stream_file.file_types import type_of_path
from continual_petl.streams.stream_file.yaml_file import ONE_TASK, load_stream, load_task, located

Tasks = TaskStream | TaskSpec | Mapping[str, Any] | str | os.PathLike[str] | None
"""What a run can learn; see `Run.learn`."""


class LearnOptions(TypedDict, total=False):
    """Options of `continual_petl.learn` and `Run.learn`; all may be left out."""

    callbacks: Sequence[L.Callback]
    """Lightning callbacks, or `StreamCallback` to observe tasks as well; default: none. The state that a Lightning callback
    keeps during a fit (its ``state_dict``: EarlyStopping's best score, say) is reset for every task, so that no task depends
    on earlier ones; a `StreamCallback` keeps its state across tasks."""
    trainer: dict[str, Any] | None
    """Arguments for Lightning's Trainer, which override those of the stream; default: none."""
    replace: Collection[str]
    """Learned tasks to learn again, as the stream describes them now; default: none. The old bank stays until the new one is
    committed; then a tombstone takes its place, and the task counts as the last one learned."""
    wait: bool
    """Whether to wait for another process that writes to the run folder, instead of raising; default: False."""
    jobs: int | None
    """Number of tasks to learn at once, each in a process with its own backbone; the resulting store is the same, bit for
    bit. None, the default: one after the other, in this process; with Ray, as many as its cluster has room for. Workers get
    Lightning callbacks in their initial state for each task; for a `StreamCallback`, see `for_worker`."""
    executor: Executor
    """Where to learn several tasks at once: in ``processes`` on this machine (the default), or on a ``ray`` cluster."""
    test: bool
    """Whether test splits are read; if not, test rows are never used, and R contains validation scores. Default: True."""
    progress: bool | None
    """Whether to show tasks, epochs, scores and the remaining time on standard error. None, the default: only if standard
    error is a terminal or a notebook and no callback is a `Progress`."""
    discard_progress: bool
    """Whether a half-learned task may start over, losing its saved progress, if its settings, data or backbone have changed
    since; otherwise, and by default, this is an error."""


_USUAL: LearnOptions = {
    "callbacks": (),
    "trainer": None,
    "replace": (),
    "wait": False,
    "jobs": None,
    "executor": "processes",
    "test": True,
    "progress": None,
    "discard_progress": False,
}


def learn_tasks(
    stream: TaskStream, run_dir: str | Path, *, only: Collection[str] | None = None, **options: Unpack[LearnOptions]
) -> Session:
    """Learn the tasks of a stream, and return the session of the run; see `continual_petl.learn`.

    Args:
        stream: the tasks.
        run_dir: the run folder; created if it does not exist.
        only: names of the tasks to learn, and to give notices about; None means all.
        options: see `LearnOptions`.

    Raises:
        InputError: as `continual_petl.learn`, like all other errors.
    """
    asked = _checked(stream, run_dir, options)
    pool, watching = Pool(asked["jobs"], asked["executor"]), watched(asked["callbacks"], asked["progress"])
    with _opened(stream.spec, Path(run_dir), asked, only) as session, session.learning(watching):
        pending, replaced = begin_replacing(session, asked["replace"])
        session.replacing, session.discards_progress = frozenset(pending), asked["discard_progress"]
        notices = (*replaced, *_notices(session, stream.spec, only), *pool.notices())
        _write_stream(session, stream.spec, pending)
        with run_events(session, notices):
            _learn_all(session, asked_tasks(session, pending, only), pool)
        end_replacing(session.store)
    return session


def learn_into(folder: Path, tasks: Tasks, **options: Unpack[LearnOptions]) -> Session:
    """Learn a task, a stream, or the rest of the stream of a run folder; see `Run.learn`.

    Raises:
        InputError: as `learn_tasks`; or if there is another learned task of this name.
    """
    if isinstance(tasks, str | os.PathLike):
        is_stream = type_of_path(tasks) in ("stream", "stream of a run")
        tasks = TaskStream.from_yaml(tasks) if is_stream else load_task(tasks)
    elif isinstance(tasks, Mapping):
        tasks = TaskSpec(**tasks)
    if isinstance(tasks, TaskStream):
        return learn_tasks(tasks, folder, **options)
    if not isinstance(tasks, TaskSpec | None):
        raise InputError(
            f"tasks: got {tasks!r:.80}; give a task (a TaskSpec, a mapping or the file of one task), or a TaskStream"
        )
    store = open_store(folder)
    # Lock before reading the stream, which would otherwise lack a task that another process adds in the meantime.
    with store.lock(wait=options.get("wait", False)):
        store.clean()
        check_stream(store)
        spec = load_stream(store.stream_file)
        if tasks is None:
            return learn_tasks(TaskStream(spec), folder, **options)
        if tasks.split is not None:
            raise InputError(f"task {tasks.name!r}, key split: {ONE_TASK}")
        task = tasks if tasks in spec.tasks else located(tasks, os.getcwd())
        stream = TaskStream(with_task(spec, task, store, replace=task.name in options.get("replace", ())))
        return learn_tasks(stream, folder, only=[task.name], **options)


def _learn_all(session: Session, tasks: Sequence[TaskSpec], pool: Pool) -> None:
    """Learn tasks, after finishing those that a killed process had committed."""
    fresh = _Fresh(session.callbacks)
    finish_committed(session, num_more=len(tasks))
    if pool.is_elsewhere and tasks:
        learn_in_parallel(session, tasks, pool.opened(session, len(tasks)))
        return
    with sharing(session) as ranks:
        for task in tasks:
            # Checked before training, so that training is not wasted: nothing is committed while an entry is missing.
            session.store.check_complete()
            fresh.restore()
            finish_task(session, task.name, learn_task(session, task, ranks))


def _checked(stream: TaskStream, run_dir: str | Path, options: LearnOptions) -> LearnOptions:
    """Check the arguments before anything is read; return all options."""
    if unknown := [*options.keys() - _USUAL.keys()]:
        hint = did_you_mean(unknown[0], _USUAL)
        raise TypeError(f"learn has no option {unknown[0]!r}{hint}; allowed: {', '.join(_USUAL)}")
    asked = _USUAL | options
    callbacks = asked["callbacks"]
    check_is_stream(stream)
    check_local(run_dir)
    check_names("replace", asked["replace"])
    if not isinstance(callbacks, Sequence) or not all(isinstance(callback, L.Callback) for callback in callbacks):
        raise InputError(f"callbacks: got {callbacks!r:.80}; give a list of callbacks, such as [NoForgetting()]")
    found = contradictions({"trainer": asked["trainer"] or {}})
    raise_problems([f"trainer.{key[-1]}: {text}" for key, text in found])
    return asked


@contextmanager
def _opened(given: StreamSpec, run_dir: Path, asked: LearnOptions, only: Collection[str] | None) -> Iterator[Session]:
    """Open the run and perform the preflight checks; it is locked inside the ``with`` block."""
    spec = given.model_copy(update={"trainer": given.trainer | (asked["trainer"] or {})})

    def opened() -> Session:
        session = Session(spec, Store(run_dir), reads_test=asked["test"])
        preflight(session, asked["replace"], only)
        return session

    session = opened()
    seen = _state(session.store)
    # A worker that imports a script without the __main__ guard would wait for the run, which waits for this worker.
    with session.store.lock(wait=asked["wait"] and not is_being_started()):
        if _state(session.store) != seen:
            # Another process has changed the run in the meantime, so its files have to be checked again.
            session = opened()
        session.store.clean()
        check_pinned(session)
        yield session


def _write_stream(session: Session, given: StreamSpec, replace: Collection[str]) -> None:
    """Write the stream into the run folder; if nothing is left to learn, the stored defaults are kept."""
    # Objects given only in Python (loggers, strategies) belong to this process, not to the stream.
    started = given.anchored().model_copy(update={"defaults": session.spec.defaults})
    session.store.write_stream(dump_stream(without_unused_settings(_kept(session, replace, started))))


def _notices(session: Session, given: StreamSpec, about: Collection[str] | None) -> list[str]:
    """Return notices about differences between the given stream and the stored run."""
    notices, file = [], session.store.stream_file
    if "defaults" in given.model_fields_set and given.defaults != session.spec.defaults:
        notices.append(
            f"the run keeps defaults: {session.spec.defaults}, with which it was started, so that its tasks keep their "
            f"training and validation rows; defaults: {given.defaults} of the stream only applies to a new run folder"
        )
    if file.is_file() and stream_problem(session.store) is not None:
        notices.append(f"{file} was edited or damaged since it was written; the given stream replaces it")
    ignored = (*changed_settings(session, about), *tasks_without_routing(session, about))
    return [*notices, *forgotten_tasks(session), *map(IgnoredSetting, ignored)]


def _kept(session: Session, replace: Collection[str], spec: StreamSpec) -> StreamSpec:
    """Return the stream to store in the run folder; see `_write_stream`."""
    learned = set(session.store.tasks).difference(replace)
    anything_new = any(task.name not in learned for task in spec.tasks)
    if anything_new or not session.store.stream_file.is_file() or stream_problem(session.store) is not None:
        return spec
    known = load_stream(session.store.stream_file, code=False)
    inherits = any(bank.start_from is not None or bank.fuse is not None for bank in (known.bank, spec.bank))
    kept = spec.model_copy(update={"training": known.training, **({} if inherits else {"bank": known.bank})})
    return spec if contradictions_of(kept) else kept


def watched(callbacks: Sequence[L.Callback], progress: bool | None) -> list[L.Callback]:
    """Return the callbacks, with a progress display if requested."""
    if sum(isinstance(callback, Loggers) for callback in callbacks) > 1:
        raise InputError(
            "callbacks: got more than one Loggers; each would overwrite the logging position of the other. Give one, "
            "with all loggers: Loggers([...])."
        )
    if progress is None:
        progress = is_watched() and not any(isinstance(callback, Progress) for callback in callbacks)
    return [*callbacks, LiveProgress()] if progress else [*callbacks]


@contextmanager
def run_events(session: Session, notices: tuple[str, ...]) -> Iterator[None]:
    """Notify the callbacks when the run begins, and when it ends, for whatever reason."""
    stopped: BaseException | None = None
    try:
        session.notices = (*notices, *(notice for callback in session.observers for notice in callback.notices()))
        for callback in session.observers:
            callback.on_run_start(session.watched)
        yield
    except BaseException as error:
        stopped = error
        raise
    finally:
        with ExitStack() as ends:  # all are notified, even if one of them raises
            for callback in reversed(session.observers):
                ends.callback(callback.on_run_end, session.watched, stopped)


def _state(store: Store) -> tuple[bytes | None, list[str]]:
    return store.stream_file.read_bytes() if store.stream_file.is_file() else None, store.tasks


class _Fresh:
    """State of the Lightning callbacks before the run began."""

    def __init__(self, callbacks: Sequence[L.Callback]) -> None:
        self._states = [
            (callback, copy.deepcopy(state))
            for callback in callbacks
            if not isinstance(callback, StreamCallback) and (state := callback.state_dict())
        ]

    def restore(self) -> None:
        """Put every callback back into its initial state, so that nothing from an earlier task remains."""
        for callback, state in self._states:
            callback.load_state_dict(copy.deepcopy(state))
