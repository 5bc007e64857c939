"""Finish a committed task: measure its row of R, pass the gate, run the callbacks, and record that it is done."""

from __future__ import annotations

import time
from collections.abc import Sequence

import lightning as L

from continual_petl.callbacks import StreamCallback, WatchedTask
from continual_petl.engine.scoring.result_row import measure_row
from continual_petl.engine.session import Session
from continual_petl.engine.signals import StopRequest
from continual_petl.engine.task.gate import pass_gate
from continual_petl.export.formats import announced
from continual_petl.router.totals import keep_totals
from continual_petl.store.files.atomic import remove_folder
from continual_petl.store.folder.progress import seconds_so_far
from continual_petl.store.folder.results_file import RowLine, TaskLine, measured_rows, unfinished


def finish_committed(session: Session, callbacks: Sequence[L.Callback], request: StopRequest, *, num_more: int) -> None:
    """Finish tasks whose process was killed after their commit.

    Args:
        session: the run.
        callbacks: the callbacks.
        request: the stop request.
        num_more: number of tasks that will be learned after these.
    """
    links, lines = session.store.links(), session.store.results()
    committed, rows = unfinished(links, lines), measured_rows(links, lines)
    session.num_new = len(committed) + num_more
    for name in committed:
        trained = seconds_so_far(session.store.progress_folder(name))
        finish_task(session, name, callbacks, {"train": trained} if trained else {}, request, rows.get(name))


def finish_task(
    session: Session,
    task: str,
    callbacks: Sequence[L.Callback],
    seconds: dict[str, float],
    request: StopRequest,
    row: RowLine | None = None,
) -> None:
    """Measure a committed task's row of R, pass the gate, run the callbacks, and record that the task is done.

    Args:
        session: the run.
        task: the committed task.
        callbacks: the callbacks.
        seconds: the time spent so far, by phase.
        request: the stop request.
        row: the task's row, if results.jsonl already has it because an earlier run ended before the task was finished. It is
            measured again, since the gate or a callback may have rejected it, but written again only if it differs.

    Raises:
        ForgettingError: if anything learned before has changed; see `pass_gate`.
        Interrupted: if a stop was requested; the next run completes the row first.
    """
    request.stop_here(f"after task {task!r} was committed, before its row was measured")
    start = time.perf_counter()
    store, new = session.store, measure_row(session, task, request)
    if new.line != row:
        store.append_results([new.line])
    measured = time.perf_counter()
    checks, num_checks = pass_gate(session, task, new, callbacks)
    learned = WatchedTask(
        name=task,
        index=store.tasks.index(task),
        notices=tuple(new.notices),
        cells=new.line.cells,
        routed=new.line.routed,
        seconds={**seconds, "measure": measured - start, "verify": time.perf_counter() - measured},
        checks=checks,
        num_checks=num_checks,
    )
    for callback in callbacks:
        if isinstance(callback, StreamCallback):
            callback.on_task_end(session.watched, learned)
    # The folder is removed only now: it holds the training time, which would be lost if the run ended before this point.
    remove_folder(store.progress_folder(task))
    store.append_results([_done(session, learned)])
    keep_totals(store)
    known = set(store.tasks)
    left = next((spec.name for spec in session.spec.tasks if spec.name not in known), None)
    if left is None:
        request.stop_here(f"after task {task!r}: all tasks are learned", "shows the result")
    request.stop_here(f"before task {left!r}")


def _done(session: Session, learned: WatchedTask) -> TaskLine:
    """Return the line that marks a task as done."""
    store, models, task = session.store, session.models, learned.name
    link, certificate = store.link(task), store.certificate(task)
    choice, backbone = certificate.start, models.backbone_of(task)
    return TaskLine(
        task=task,
        index=link.index,
        certificate=link.seal,
        seconds=dict(learned.seconds),
        checks=dict(learned.num_checks),
        gain=None if choice is None else choice.gain,
        exports=announced(store.plan(task), backbone, models.tokenizer, certificate.max_length),
    )
