"""Finish a committed task: measure its row of R, pass the gate, run the callbacks, and record that it is done.

The gate: a run goes on only if nothing that was learned before has changed. A run always passes it; `NoForgetting` among the
callbacks says how much is checked.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import get_args

import lightning as L

from continual_petl.callbacks import WatchedTask
from continual_petl.callbacks.no_forgetting import NoForgetting, Policy, raise_if_changed
from continual_petl.engine.scoring.evaluate import check_rows
from continual_petl.engine.scoring.result_row import Row, measure_row
from continual_petl.engine.session import Session
from continual_petl.errors import ForgettingError
from continual_petl.exchange.expressible import announced
from continual_petl.router.totals import keep_totals
from continual_petl.store.certificate.environment import current_environment
from continual_petl.store.certificate.finding import TaskCheck
from continual_petl.store.files.atomic import remove_folder
from continual_petl.store.folder.progress import seconds_so_far
from continual_petl.store.ledger.lines import FinishedLine, MeasuredScore, RowLine, measured_rows, unfinished
from continual_petl.store.verify.certificate import check_task, rotating


def finish_committed(session: Session, *, num_more: int) -> None:
    """Finish tasks whose process was killed after their commit.

    Args:
        session: the run.
        num_more: number of tasks that will be learned after these.
    """
    commits, lines = session.store.commits(), session.store.results()
    committed, rows = unfinished(commits, lines), measured_rows(commits, lines)
    session.num_new = len(committed) + num_more
    for name in committed:
        trained = seconds_so_far(session.store.progress_folder(name))
        finish_task(session, name, {"train": trained} if trained else {}, rows.get(name))


def finish_task(session: Session, task: str, seconds: dict[str, float], row: RowLine | None = None) -> None:
    """Measure a committed task's row of R, pass the gate, run the callbacks, and record that the task is done.

    Args:
        session: the run.
        task: the committed task.
        seconds: the time spent so far, by phase.
        row: the task's row, if ledger.jsonl already has it because an earlier run ended before the task was finished. It is
            measured again, since the gate or a callback may have rejected it, but written again only if it differs.

    Raises:
        ForgettingError: if anything learned before has changed; see `pass_gate`.
        Interrupted: if a stop was requested; the next run completes the row first.
    """
    request, store = session.request, session.store
    request.stop_here(f"after task {task!r} was committed, before its row was measured")
    start = time.perf_counter()
    new = measure_row(session, task)
    if new.line != row:
        store.append([new.line])
    measured = time.perf_counter()
    checks, num_checks = pass_gate(session, task, new)
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
    for callback in session.observers:
        callback.on_task_end(session.watched, learned)
    # The folder is removed only now: it holds the training time, which would be lost if the run ended before this point.
    remove_folder(store.progress_folder(task))
    store.append([_done(session, learned)])
    keep_totals(store)
    known = set(store.tasks)
    left = next((spec.name for spec in session.spec.tasks if spec.name not in known), None)
    if left is None:
        request.stop_here(f"after task {task!r}: all tasks are learned", "shows the result")
    request.stop_here(f"before task {left!r}")


def _done(session: Session, learned: WatchedTask) -> FinishedLine:
    """Return the line that marks a task as done."""
    store, models, task = session.store, session.models, learned.name
    commit, certificate = store.commit(task), store.certificate(task)
    choice, backbone = certificate.start, models.backbone_of(task)
    return FinishedLine(
        task=task,
        index=commit.index,
        certificate=commit.seal,
        seconds=dict(learned.seconds),
        checks=dict(learned.num_checks),
        gain=None if choice is None else choice.gain,
        exports=announced(store.plan(task), backbone, models.tokenizer, certificate.max_length),
    )


def watching_fit(callbacks: Sequence[L.Callback]) -> list[L.Callback]:
    """Return the callbacks of a fit, one of which watches what must not change in memory."""
    watched = any(isinstance(callback, NoForgetting) for callback in callbacks)
    return [*callbacks] if watched else [*callbacks, NoForgetting()]


def pass_gate(session: Session, task: str, row: Row) -> tuple[tuple[TaskCheck, ...], dict[str, int]]:
    """Check the chain, earlier certificates and the re-measured scores after a task; shared banks are left out.

    The strictest `NoForgetting` among the callbacks decides how much is checked.

    Args:
        session: the run.
        task: the task that was committed last.
        row: its row of R; the certificates that were checked for it are not checked again.

    Returns:
        The checks of earlier certificates, and their number by depth: digests, probe, full.

    Raises:
        ForgettingError: if anything has changed.
    """
    store, models = session.store, session.models
    gates = [callback for callback in session.callbacks if isinstance(callback, NoForgetting)] or [NoForgetting()]
    policy: Policy = max((gate.policy for gate in gates), key=get_args(Policy).index)
    if problems := store.problems():
        raise ForgettingError(" ".join(problems.values()))
    index = store.tasks.index(task)
    earlier = [commit.task for commit in store.commits()[:index] if not commit.shared]
    chosen = set(earlier) if policy == "full" else rotating(earlier, index, max(gate.limit for gate in gates))
    in_memory = models.learner(models.backbone_of(task).precision).plans
    if policy == "probe":
        chosen |= in_memory.keys()
    checks, num_full = list[TaskCheck](), 0
    for name in (learned for learned in earlier if learned in chosen):
        # None if this run has no backbone in the task's precision; `Run.verify` loads one.
        backbone = models.backbones.get(store.certificate(name).environment.precision)
        check = row.checks.get(name) or check_task(store, name, backbone, probe=policy != "digests")
        raise_if_changed(check.findings)
        checks.append(check)
        if policy == "full" and backbone is not None:
            again = check_rows(session, name)
            raise_if_changed(again.findings)
            num_full += again.unreachable is None
    for cell in row.line.cells:
        if cell.task in earlier and cell.status == "measured":
            _check_cell(session, task, cell)
    probes = sum("probe" in check.how for check in checks)
    depths = {"digests": len(checks) - probes, "full": num_full, "probe": probes - num_full}
    return tuple(checks), {depth: number for depth, number in depths.items() if number}


def _check_cell(session: Session, after: str, cell: MeasuredScore) -> None:
    certificate = session.store.certificate(cell.task)
    backbone = session.models.backbones[certificate.environment.precision]
    now = current_environment(backbone.model.device, backbone.precision, backbone.attention)
    first = certificate.scores[cell.split].scores.get(certificate.metric)
    same_environment = not certificate.environment.differences(now)
    if same_environment and cell.value != first:
        raise ForgettingError(
            f"task {cell.task!r}: its {certificate.metric} on its {cell.split} split was {first!r} when it was "
            f"learned and is {cell.value!r} after {after!r}. Its certificate holds and its rows are the same, so "
            "check how it is measured: the Trainer's arguments, a callback, the library that computes the scores."
        )
