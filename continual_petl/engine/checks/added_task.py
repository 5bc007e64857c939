"""Add a task to the stream of a run; a learned task is replaced only on purpose."""

from __future__ import annotations

from continual_petl.errors import InputError
from continual_petl.store.store import Store
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec


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
