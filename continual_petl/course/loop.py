"""The course: the tasks of a stream, one after the other, into one store."""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L

from continual_petl.callbacks import NoForgetting, StreamCallback, TaskEvent
from continual_petl.course.learn_task import learn_task
from continual_petl.course.preflight import preflight
from continual_petl.course.row import measure_row
from continual_petl.course.run import Run
from continual_petl.course.session import Session, changed_settings
from continual_petl.course.signals import StopRequest, listening
from continual_petl.store.store import Store
from continual_petl.streams.stream import TaskStream
from continual_petl.streams.stream_file.yaml_file import dump_stream


def learn(
    stream: TaskStream,
    run_dir: str | Path,
    *,
    callbacks: Sequence[L.Callback] = (),
    trainer: dict[str, Any] | None = None,
    wait: bool = False,
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
        wait: whether to wait for another process that writes to the run folder, instead of raising.

    Returns:
        The run: results, verification, predictions.

    Raises:
        InputError: if the stream or its data cannot be used; nothing already learned is touched.
        ForgettingError: if anything learned before has changed.
        StoreError: if the run folder is damaged, belongs to another backbone, or is in use.
        Interrupted: after Ctrl-C or SIGTERM; calling again goes on.
    """
    spec = stream.spec.model_copy(update={"trainer": stream.spec.trainer | (trainer or {})})
    watching = list(callbacks)
    if not any(isinstance(callback, NoForgetting) for callback in watching):
        watching.append(NoForgetting())
    fresh = _Fresh(watching)
    session = Session(spec, Store(Path(run_dir)))
    preflight(session)
    seen = _state(session.store)
    with session.store.lock(wait=wait), listening() as request:
        if _state(session.store) != seen:
            # Another process was faster; what it wrote was not looked at.
            session = Session(spec, Store(Path(run_dir)))
            preflight(session)
        session.check_backbone()
        # What was given in Python only (loggers, strategies) is of this process, not of the stream.
        session.store.write_stream(dump_stream(stream.spec.anchored()))
        notices = changed_settings(session)
        for callback in watching:
            if isinstance(callback, StreamCallback):
                callback.on_course_start(notices)
        # Rows that a kill left unfinished come first.
        finished = {row["task"] for row in session.store.results() if row["type"] == "task"}
        for name in session.store.tasks:
            if name not in finished:
                _finish(session, name, watching, {}, request)
        for task in spec.tasks:
            if task.name not in session.store.tasks:
                fresh.restore()
                seconds = learn_task(session, task, watching, request)
                _finish(session, task.name, watching, seconds, request)
    return Run(session.store.folder, session=session)


def _finish(
    session: Session, task: str, callbacks: Sequence[L.Callback], seconds: dict[str, float], request: StopRequest
) -> None:
    """Measure a committed task's row of R, let the callbacks look, and note that all is done.

    Raises:
        Interrupted: if a stop was asked for; what is left of the row comes first the next time.
    """
    # A kill right after the commit leaves this behind.
    shutil.rmtree(session.store.progress_folder(task), ignore_errors=True)
    request.stop_here(f"after task {task!r} was committed, before its row was measured")
    start = time.perf_counter()
    # Callbacks check certificates on it, also where nothing was measured.
    session.residents.backbone_of(task)
    cells, notices = measure_row(session, task, request)
    session.store.append_results(cells)
    measured = time.perf_counter()
    event = TaskEvent(
        task=task,
        index=session.store.manifest(task).index,
        num_tasks=len(session.spec.tasks),
        store=session.store,
        backbones=session.residents.backbones,
        notices=tuple(notices),
    )
    for callback in callbacks:
        if isinstance(callback, StreamCallback):
            callback.on_task_end(event, cells)
    spent = {**seconds, "measure": measured - start, "verify": time.perf_counter() - measured}
    session.store.append_results([{"type": "task", "task": task, "seconds": spent}])
    tasks = [spec.name for spec in session.spec.tasks]
    left = [name for name in tasks if name not in session.store.tasks]
    request.stop_here(f"before task {left[0]!r}" if left else f"after task {task!r}, with which all is learned")


def _state(store: Store) -> tuple[bytes | None, list[str]]:
    return store.stream_file.read_bytes() if store.stream_file.exists() else None, store.tasks


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
