"""Finish a committed task: measure its row of R, run the callbacks, and write the line that marks it as done."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import lightning as L

from continual_petl.callbacks import NoForgetting, StreamCallback, TaskEvent
from continual_petl.engine.scoring.evaluate import check_rows
from continual_petl.engine.scoring.result_row import Row, measure_row
from continual_petl.engine.session import Session
from continual_petl.engine.signals import StopRequest
from continual_petl.export.formats import announced
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
        row: the task's row, if results.jsonl already has it because an earlier run ended before the task was finished. It is
            measured again, since a callback may have rejected it, but written again only if it differs.

    Raises:
        Interrupted: if a stop was requested; the next run completes the row first.
    """
    request.stop_here(f"after task {task!r} was committed, before its row was measured")
    start = time.perf_counter()
    # Callbacks check certificates with the backbone, even if nothing was measured.
    session.models.backbone_of(task)
    store, new = session.store, measure_row(session, task, request)
    if new.line != row:
        store.append_results([new.line])
    measured = time.perf_counter()
    event = _event(session, task, new)
    watching = [callback for callback in callbacks if isinstance(callback, StreamCallback)]
    for callback in watching:
        callback.on_task_end(event, [cell.model_dump() for cell in new.line.cells])
    checks = Counter(
        kind for callback in watching if isinstance(callback, NoForgetting) for kind in callback.kinds(task)
    )
    spent = {**seconds, "measure": measured - start, "verify": time.perf_counter() - measured}
    # The folder is removed only now: it holds the training time, which would be lost if the run ended before this point.
    remove_folder(store.progress_folder(task))
    store.append_results([_done(session, task, spent, checks)])
    keep_totals(store)
    for callback in watching:
        callback.on_task_checked(event, spent, dict(checks))
    learned = set(store.tasks)
    left = next((spec.name for spec in session.spec.tasks if spec.name not in learned), None)
    if left is None:
        request.stop_here(f"after task {task!r}: all tasks are learned", "shows the result")
    request.stop_here(f"before task {left!r}")


def _event(session: Session, task: str, row: Row) -> TaskEvent:
    """Return the event that the callbacks get for a task whose row was measured."""
    learner = session.models.learner(session.models.backbone_of(task).precision)
    return TaskEvent(
        task=task,
        index=session.store.tasks.index(task),
        num_tasks=session.num_tasks,
        store=session.store,
        backbones=session.models.backbones,
        notices=tuple(row.notices),
        models=frozenset(learner.plans),
        checked=row.checks,
        routed=row.line.routed,
        recheck=lambda earlier: check_rows(session, earlier),
    )


def _done(session: Session, task: str, seconds: dict[str, float], checks: Counter[str]) -> TaskLine:
    """Return the line that marks a task as done."""
    store, models = session.store, session.models
    link, manifest = store.link(task), store.manifest(task)
    choice, backbone = manifest.start, models.backbone_of(task)
    return TaskLine(
        task=task,
        index=link.index,
        certificate=link.seal,
        seconds=seconds,
        checks=dict(sorted(checks.items())),
        gain=None if choice is None else choice.gain,
        exports=announced(store.plan(task), backbone, models.tokenizer, manifest.max_length),
    )
