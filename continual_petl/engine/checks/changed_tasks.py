"""Which tasks may be added to a run, learned again (``--replace``) or dropped without changing the predictions of others."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from continual_petl.errors import InputError
from continual_petl.store.dependencies import readers
from continual_petl.store.store import Store
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec

if TYPE_CHECKING:
    from continual_petl.engine.session import Session  # imports torch, which `forget` does not need


def check_replaced(session: Session, tasks: Collection[str]) -> None:
    """Raise `InputError` unless these tasks can be learned again."""
    for task in tasks:
        if task not in session.store.tasks:
            known = ", ".join(session.store.tasks) or "none"
            raise InputError(
                f"--replace {task}: this task has not been learned in {session.folder}; learned tasks: {known}"
            )
        if task not in [spec.name for spec in session.spec.tasks]:
            raise InputError(f"--replace {task}: the stream does not say how to learn it; add it to `tasks`")
        check_not_shared(session.store, task, "replaced")
        check_not_read(session.store, task, "replaced")


def check_not_shared(store: Store, task: str, what: str) -> None:
    """Reject a change to a shared bank that would affect other tasks' predictions, which use the newest shared bank."""
    shared = [commit.task for commit in store.commits() if commit.shared]
    if task in shared and len(shared) > 1 and (what == "replaced" or task == shared[-1]):
        others = ", ".join(repr(name) for name in shared if name != task)
        raise InputError(
            f"task {task!r} cannot be {what}: its bank has scope: shared, and without it {others} would predict differently. "
            "Learn the stream into another --run-dir."
        )


def check_not_read(store: Store, task: str, what: str) -> None:
    """Reject a change to a bank that fused banks read."""
    if found := readers(store, task):
        raise InputError(
            f"task {task!r} cannot be {what}: other tasks have fused banks that read its bank, and could not predict without "
            f"it: {', '.join(map(repr, found))}. Forget them first (continual-petl forget), or learn the stream into "
            "another --run-dir."
        )


def with_task(spec: StreamSpec, task: TaskSpec, store: Store, *, replace: bool) -> StreamSpec:
    """Return a run's stream with a task added, or in place of the one with the same name.

    Args:
        spec: the run's stream.
        task: the task.
        store: the run folder.
        replace: whether the task may take the place of a learned one of this name.

    Raises:
        InputError: if a learned task has this name and other settings.
    """
    learned = store.tasks
    # A stream cannot be empty: if its last task is forgotten, the task stays in the file but must not be learned again.
    forgotten = {tombstone.task for tombstone in store.tombstones()}.difference(learned)
    others = tuple(
        known for known in spec.tasks if known.name.casefold() != task.name.casefold() and known.name not in forgotten
    )
    for known in spec.tasks:
        # The same task again resumes a half-learned one; a different task of the same name is a mistake.
        same = known.name.casefold() == task.name.casefold() and known.name in learned
        if same and known != task and not (replace and known.name == task.name):
            keys = [key for key in TaskSpec.model_fields if key != "name" and getattr(known, key) != getattr(task, key)]
            if "data" in keys and spec.resolved_data(known) == spec.resolved_data(task):
                keys.remove("data")  # only written differently
            other = f", learned with other settings ({', '.join(keys)})" if keys else ""
            raise InputError(
                f"the run {store.folder} already has a task {known.name!r}{other}; a learned task is never replaced "
                f"silently: choose another name for the new one, or add --replace (in Python: replace=[{task.name!r}]) to "
                "learn it again",
                key=("name",),
            )
    # A task that was stopped or refused before it was learned may be given again with other settings.
    tasks = spec.tasks if task in spec.tasks and not forgotten else (*others, task)
    return spec.model_copy(update={"tasks": tasks})
