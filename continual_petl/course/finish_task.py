"""What is left to do when a task is committed: its row of R, the callbacks' look, and the line that says that all is done."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import lightning as L

from continual_petl.callbacks import NoForgetting, StreamCallback, TaskEvent
from continual_petl.course.recheck import recheck_rows
from continual_petl.course.row import measure_row
from continual_petl.course.session import Session
from continual_petl.course.signals import StopRequest
from continual_petl.store.atomic import remove_folder
from continual_petl.store.results_file import RowLine, TaskLine


def finish_task(
    session: Session,
    task: str,
    callbacks: Sequence[L.Callback],
    seconds: dict[str, float],
    request: StopRequest,
    row: RowLine | None = None,
) -> None:
    """Measure a committed task's row of R, let the callbacks look, and note that all is done.

    Args:
        session: the course.
        task: what was committed.
        callbacks: what watches.
        seconds: what it cost so far, by phase.
        request: whether to stop.
        row: its row, if results.jsonl has it already: a stop or a kill came between it and the end of the task's work. It
            is measured again, since what watches may have refused it, and written again only if it differs.

    Raises:
        Interrupted: if a stop was asked for; what is left of the row comes first the next time.
    """
    request.stop_here(f"after task {task!r} was committed, before its row was measured")
    start = time.perf_counter()
    # Callbacks check certificates on it, also where nothing was measured.
    session.residents.backbone_of(task)
    store, before = session.store, row
    row, notices, checked = measure_row(session, task, request)
    if row != before:
        store.append_results([row])
    measured = time.perf_counter()
    learner = session.residents.learner(session.residents.backbone_of(task).precision)
    event = TaskEvent(
        task=task,
        index=store.tasks.index(task),
        num_tasks=session.num_tasks,
        store=store,
        backbones=session.residents.backbones,
        notices=tuple(notices),
        residents=frozenset(learner.plans),
        checked=checked,
        recheck=lambda earlier: recheck_rows(session, earlier),
    )
    watching = [callback for callback in callbacks if isinstance(callback, StreamCallback)]
    for callback in watching:
        callback.on_task_end(event, [cell.model_dump() for cell in row.cells])
    checks = Counter(
        kind for callback in watching if isinstance(callback, NoForgetting) for kind in callback.kinds(task)
    )
    spent = {**seconds, "measure": measured - start, "verify": time.perf_counter() - measured}
    # Not before: it knows what training took, if a stop or a kill comes between the commit and here.
    remove_folder(store.progress_folder(task))
    link = store.link(task)
    done = TaskLine(
        task=task, index=link.index, certificate=link.seal, seconds=spent, checks=dict(sorted(checks.items()))
    )
    store.append_results([done])
    for callback in watching:
        callback.on_task_checked(event, spent, dict(checks))
    learned = set(store.tasks)
    left = next((spec.name for spec in session.spec.tasks if spec.name not in learned), None)
    request.stop_here(f"after task {task!r}, with which all is learned" if left is None else f"before task {left!r}")
