"""Learn into an existing run folder: one more task, a stream, or the rest of the run's own stream."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from continual_petl.engine.checks.added_task import with_task
from continual_petl.engine.learn import LearnOptions, learn_tasks
from continual_petl.engine.session import Session
from continual_petl.errors import InputError
from continual_petl.store.folder.stream_seal import check_stream
from continual_petl.store.open_run import open_store
from continual_petl.streams.schema.stream_spec import TaskSpec
from continual_petl.streams.stream import TaskStream
from continual_petl.streams.stream_file.file_types import type_of_path
from continual_petl.streams.stream_file.yaml_file import ONE_TASK, load_stream, load_task, located

Tasks = TaskStream | TaskSpec | Mapping[str, Any] | str | os.PathLike[str] | None
"""What a run can learn; see `Run.learn`."""


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
