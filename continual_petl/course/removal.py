"""Taking a learned task out of a run, on purpose: forgetting it, or replacing it by what is learned anew."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from continual_petl.course.run import Run
from continual_petl.course.session import Session
from continual_petl.errors import InputError
from continual_petl.store.atomic import remove_folder
from continual_petl.store.forget import forget_entry, forget_task
from continual_petl.store.position import half_learned
from continual_petl.store.store import Store
from continual_petl.store.stream_seal import stream_problem
from continual_petl.streams.stream_file.dump import dump_stream, settled

_log = logging.getLogger(__name__)


def forget(run_dir: str | Path, task: str | None = None, *, entry: int | None = None) -> Run:
    """Drop a learned task. Its bank is deleted, a tombstone takes its place in the chain, and no other task is touched.

    The run's stream.yaml names the task no longer. A stream of yours that still does learns it again, as a new task.

    Args:
        run_dir: the run folder.
        task: a learned task, one that was stopped half-way, of which nothing stays, or one whose bank is missing.
        entry: instead of a task, the number of an entry of the chain that is missing, or of a tombstone on one side of a
            fork; `Run.verify` reports them.

    Returns:
        The run as it is then.

    Raises:
        InputError: if the task is not learned, the entry is not missing, or other tasks answer with this bank.
        StoreError: if the run folder is damaged.
        RunInUseError: if another process writes to it.
    """
    if (task is None) == (entry is None):
        raise InputError("forget: give either a task, or the number of an entry that is missing (entry)")
    run = Run(run_dir)
    store = Store(run.store.folder)
    with store.lock():
        store.clean()
        problem = stream_problem(store)
        if entry is not None:
            task = forget_entry(store, entry).task
        elif task is not None:
            _forget_task(run, store, task)
        spec = run.session.spec
        others = tuple(known for known in spec.tasks if known.name != task)
        if problem is not None:
            _log.warning(
                "%s So it was left as it is, and may still name what was forgotten.", problem.rstrip(".") + "."
            )
        elif others and len(others) < len(spec.tasks) and task is not None and not store.has(task):
            store.write_stream(dump_stream(settled(spec.model_copy(update={"tasks": others}))))
    return Run(run_dir)


def _forget_task(run: Run, store: Store, task: str) -> None:
    known = [each.name for each in run.session.spec.tasks]
    gone = {stone.task for stone in store.tombstones()}.difference(store.tasks)
    if not store.has(task) and task not in {lost.task for lost in store.missing()}:
        if task in half_learned(store):
            remove_folder(store.progress_folder(task))  # no certificate names it, so no tombstone has to stand for it
            return
        if task in gone and task in known and len(known) > 1:
            return  # a kill may have left the stream to be written
        run.check_learned(task)
    _check_shared(store, task, "forgotten")
    forget_task(store, task)


def check_replaced(session: Session, tasks: Collection[str]) -> None:
    """Raise `InputError` unless these tasks can be learned again."""
    for task in tasks:
        if task not in session.store.tasks:
            known = ", ".join(session.store.tasks) or "none"
            raise InputError(f"--replace {task}: this task is not learned in {session.folder}; learned are: {known}")
        if task not in [spec.name for spec in session.spec.tasks]:
            raise InputError(f"--replace {task}: the stream does not say how to learn it; add it to `tasks`")
        _check_shared(session.store, task, "replaced")


def _check_shared(store: Store, task: str, what: str) -> None:
    """Refuse what would change other tasks' answers: they go through the newest of the shared banks."""
    shared = [link.task for link in store.links() if link.shared]
    if task in shared and len(shared) > 1 and (what == "replaced" or task == shared[-1]):
        others = ", ".join(repr(name) for name in shared if name != task)
        raise InputError(
            f"task {task!r} cannot be {what}: its bank has scope: shared, and {others} would answer otherwise without it. "
            "Learn the stream into another --run-dir."
        )
