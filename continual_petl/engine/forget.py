"""Drop a learned task from a run on purpose."""

from __future__ import annotations

import logging
from pathlib import Path

from continual_petl.engine.checks.changed_tasks import check_not_read, check_not_shared
from continual_petl.errors import InputError, StoreError
from continual_petl.store.files.atomic import remove_folder, write_file
from continual_petl.store.files.reading import read_file
from continual_petl.store.folder.progress import half_learned
from continual_petl.store.folder.stream_seal import stream_problem
from continual_petl.store.forget import delete_forgotten, forget_entry, forget_task
from continual_petl.store.ledger.lines import ForgetLine
from continual_petl.store.open_run import check_learned, open_store
from continual_petl.store.store import Store
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.stream_file.dump import dump_stream, without_unused_settings
from continual_petl.streams.stream_file.yaml_file import load_stream

_log = logging.getLogger(__name__)


def drop_task(run_dir: str | Path, task: str | None = None, *, entry: int | None = None) -> None:
    """Drop a learned task; see `continual_petl.forget`."""
    if (task is None) == (entry is None):
        raise InputError("forget: give either a task, or the number of a missing entry (entry)")
    store = open_store(run_dir)
    spec = load_stream(store.stream_file)
    with store.lock():
        # The same command may have been killed after it wrote the tombstone.
        unfinished = not store.has(task or "") and any(
            stone.task == task and stone.removed.folder in store.state().dropped for stone in store.tombstones()
        )
        store.clean()
        problem = stream_problem(store)
        line: ForgetLine | None = None
        if entry is not None:
            line = forget_entry(store, entry)
            task = None if line is None else line.task
        elif task is not None and not unfinished:
            line = _forget_task(spec, store, task)
        others = tuple(known for known in spec.tasks if known.name != task)
        before = None
        if problem is not None:
            _log.warning(
                "%s It was therefore left unchanged, and may still name the forgotten task.", problem.rstrip(".") + "."
            )
        elif others and len(others) < len(spec.tasks):
            before = read_file(store.stream_file)
            # Written first, since a line of the ledger is never taken back.
            store.write_stream(dump_stream(without_unused_settings(spec.model_copy(update={"tasks": others}))))
        if line is not None:
            try:
                store.append([line])
            except StoreError:
                if before is not None:
                    write_file(store.stream_file, before)
                raise
            delete_forgotten(store, line.task)


def _forget_task(spec: StreamSpec, store: Store, task: str) -> ForgetLine | None:
    """Return the line that drops a task; None if it needs none."""
    known = [each.name for each in spec.tasks]
    if not store.has(task) and task not in store.missing():
        if task in half_learned(store):
            remove_folder(store.progress_folder(task))  # no certificate names it, so no tombstone is needed
            return None
        if task in {stone.task for stone in store.tombstones()} and task in known and len(known) > 1:
            return None  # already forgotten; the stream names it again
        check_learned(store, task)
    check_not_shared(store, task, "forgotten")
    check_not_read(store, task, "forgotten")
    return forget_task(store, task)
