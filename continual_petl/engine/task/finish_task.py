"""Finish a committed task: measure its row of R, run the callbacks, and write the line that marks it as done."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import lightning as L

from continual_petl.callbacks import NoForgetting, StreamCallback, TaskEvent
from continual_petl.engine.scoring.certified_rows import check_rows
from continual_petl.engine.scoring.result_row import measure_row
from continual_petl.engine.session import Session
from continual_petl.engine.signals import StopRequest
from continual_petl.router.totals import keep_totals
from continual_petl.store.files.atomic import remove_folder
from continual_petl.store.folder.results_file import RowLine, TaskLine


def finish_task(
    session: Session,
    task: str,
    callbacks: Sequence[L.Callback],
    seconds: dict[str, float],
    request: StopRequest,
    row: RowLine | None = None,
) -> None:
    """Measure a committed task's row of R, run the callbacks, and record that the task is done.

    Args:
        session: the run.
        task: the committed task.
        callbacks: the callbacks.
        seconds: the time spent so far, by phase.
        request: the stop request.
        row: its row, if results.jsonl already has it because an earlier run ended before the task was finished. The row is
            measured again, since a callback may have rejected it, and written again only if it differs.

    Raises:
        Interrupted: if a stop was requested; the next run completes the row first.
    """
    request.stop_here(f"after task {task!r} was committed, before its row was measured")
    start = time.perf_counter()
    # Callbacks check certificates with the backbone, even if nothing was measured.
    session.models.backbone_of(task)
    store, before = session.store, row
    row, notices, checked = measure_row(session, task, request)
    if row != before:
        store.append_results([row])
    measured = time.perf_counter()
    learner = session.models.learner(session.models.backbone_of(task).precision)
    event = TaskEvent(
        task=task,
        index=store.tasks.index(task),
        num_tasks=session.num_tasks,
        store=store,
        backbones=session.models.backbones,
        notices=tuple(notices),
        models=frozenset(learner.plans),
        checked=checked,
        routed=row.routed,
        recheck=lambda earlier: check_rows(session, earlier),
    )
    watching = [callback for callback in callbacks if isinstance(callback, StreamCallback)]
    for callback in watching:
        callback.on_task_end(event, [cell.model_dump() for cell in row.cells])
    checks = Counter(
        kind for callback in watching if isinstance(callback, NoForgetting) for kind in callback.kinds(task)
    )
    spent = {**seconds, "measure": measured - start, "verify": time.perf_counter() - measured}
    # Removed only now: it holds the training time, which would be lost if the run ended between the commit and here.
    remove_folder(store.progress_folder(task))
    link = store.link(task)
    choice = store.manifest(task).start
    done = TaskLine(
        task=task,
        index=link.index,
        certificate=link.seal,
        seconds=spent,
        checks=dict(sorted(checks.items())),
        gain=None if choice is None else choice.gain,
    )
    store.append_results([done])
    keep_totals(store)
    for callback in watching:
        callback.on_task_checked(event, spent, dict(checks))
    learned = set(store.tasks)
    left = next((spec.name for spec in session.spec.tasks if spec.name not in learned), None)
    if left is None:
        request.stop_here(f"after task {task!r}: all tasks are learned", "shows the result")
    request.stop_here(f"before task {left!r}")
