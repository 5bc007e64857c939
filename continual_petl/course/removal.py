"""Taking a learned task out of a run, on purpose: forgetting it, or replacing it by what is learned anew."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from continual_petl.course.run import Run
from continual_petl.course.session import Session
from continual_petl.errors import InputError, StoreError
from continual_petl.store.chain import broken
from continual_petl.store.position import half_learned
from continual_petl.store.store import Store
from continual_petl.streams.stream_file.dump import dump_stream, settled


def forget(run_dir: str | Path, task: str) -> Run:
    """Drop a learned task. Its bank is deleted, a tombstone takes its place in the chain, and no other task is touched.

    The run's stream.yaml names the task no longer. A stream of yours that still does learns it again, as a new task.

    Args:
        run_dir: the run folder.
        task: a learned task, or one that was stopped half-way, of which nothing stays.

    Returns:
        The run as it is then.

    Raises:
        InputError: if the task is not learned, or other tasks answer with its bank.
        StoreError: if the run folder is damaged.
        RunInUseError: if another process writes to it.
    """
    run = Run(run_dir)
    store = Store(run.store.folder)
    with store.lock():
        store.clean()
        spec = run.session.spec
        others = tuple(known for known in spec.tasks if known.name != task)
        gone = {stone.task for stone in store.tombstones()}.difference(store.tasks)
        if not store.has(task) and task in half_learned(store):
            shutil.rmtree(store.progress_folder(task))  # no certificate names it, so no tombstone need stand for it
        # A kill may have left the stream to be written.
        elif task not in gone or len(others) in (0, len(spec.tasks)):
            run.check_learned(task)
            _check_shared(store, task, "forgotten")
            if problems := broken(store.chain()):
                # A tombstone on a broken chain would make what was lost look like a part of it.
                raise StoreError(" ".join(problems.values()))
            store.forget(task)
        if others:
            store.write_stream(dump_stream(settled(spec.model_copy(update={"tasks": others}))))
    return Run(run_dir)


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
