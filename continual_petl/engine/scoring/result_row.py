"""One row of the result matrix: the scores, measured or certified, of all learned tasks after a new one was learned."""

from __future__ import annotations

from typing import NamedTuple

import torch

from continual_petl.engine.scoring.evaluate import NO_TEST, certified_rows, evaluate, predicting
from continual_petl.engine.scoring.routed_row import routed_cells
from continual_petl.engine.session import Session
from continual_petl.errors import ForgettingError, InputError, named_tasks
from continual_petl.seeding import derive_seed
from continual_petl.store.certificate.finding import TaskCheck
from continual_petl.store.ledger.lines import CommitLine, MeasuredScore, RowLine, Status, cell_of
from continual_petl.store.verify.certificate import check_task, rotating

MEASURE_ALL_UP_TO = 20
"""With fewer earlier tasks than this, ``evaluate: auto`` measures all of them; otherwise it takes certified scores."""
_MEASURED: Status = "measured"
_CERTIFIED: Status = "certified"
_NOT_MEASURED: Status = "not measured"
_SAMPLE = 5
_CHECKED = 20
_NO_CERTIFIED = (
    "With evaluate: auto, certified scores are carried over (except for shared banks, which have changed since they were "
    "certified)."
)
_NAMED = 5
"""Maximum number of tasks for which a notice gives the reason."""


class _NotMeasurable(Exception):
    """The rows that an earlier task was measured on are not available; the message gives the reason."""


class Row(NamedTuple):
    """The scores of all learned tasks after a new one was learned."""

    line: RowLine
    notices: list[str]
    """Notices for the user."""
    checks: dict[str, TaskCheck]
    """Earlier tasks whose certificates were checked for this row."""


def measure_row(session: Session, after: str) -> Row:
    """Return the row of R after learning a task.

    Except with ``evaluate: all``, the cost is bounded: of many earlier tasks with their own banks, only a sample is measured
    or certified, and only the last row of a stream is complete, provided that this command learned enough tasks to justify
    the cost (see `affordable`). The remaining cells count as not measured. If the rows of a task to be measured are not
    available, its certificate is checked and its certified score carried over, unless the stream asks for
    ``evaluate: all``. The rows of a measured task are also predicted without a task name if it stored routing statistics.

    Raises:
        ForgettingError: if a certificate does not hold.
        Interrupted: between two cells, if a stop was requested.
    """
    store = session.store
    commits = store.commits()
    index = [commit.task for commit in commits].index(after)
    cells: list[MeasuredScore] = []
    gone: dict[str, str] = {}
    checks: dict[str, TaskCheck] = {}
    measured, certified = _choose(session, after, commits[:index])
    for commit in commits[: index + 1]:
        task = commit.task
        if task != after and task not in measured | certified:
            continue
        session.request.stop_here(f"while the row of task {after!r} was being measured; the task is committed")
        certificate = store.certificate(task)
        value, status = certificate.score, _MEASURED
        if task in measured and certificate.is_measured:
            try:
                value = _measure(session, task)
            except _NotMeasurable as error:
                gone[task] = str(error)
                # A shared bank differs from its certificate, and with evaluate: all no certificate replaces a measurement.
                if session.spec.evaluate != "all" and not commit.shared:
                    certified.add(task)
        if task in certified:
            checks[task] = check_task(store, task, session.models.backbone_of(task))
            if not checks[task].ok:
                raise ForgettingError(" ".join(checks[task].problems))
            status = _CERTIFIED
        if task in gone.keys() - certified or not certificate.is_measured:  # not measured if imported without rows
            value, status = None, _NOT_MEASURED
        cells.append(cell_of(certificate, value, status))
    carried = {task: why for task, why in gone.items() if task in certified and why != NO_TEST}
    skipped = {task: why for task, why in sorted(gone.items()) if task not in certified and why == NO_TEST}
    left = {task: why for task, why in gone.items() if task not in {*certified, *skipped}}
    own = [cell.task for cell in cells if cell.status == _MEASURED]
    # In a long run, a row often measures only the new task, for which the router is not recomputed.
    routed, confused = routed_cells(session, own, after) if len(own) > 1 or index == 0 else ((), [])
    notices = [
        *_not_measured_again(skipped, "R has no score for them."),
        *_not_measured_again(
            carried, "Their certificates were checked, and their certified scores are carried over into R."
        ),
        *_not_measured_again(left, _NO_CERTIFIED),
        *confused,
    ]
    return Row(RowLine(after=after, index=commits[index].index, cells=tuple(cells), routed=routed), notices, checks)


def _not_measured_again(why: dict[str, str], instead: str) -> list[str]:
    """Return a single notice for all tasks that were not measured again, each with the reason; ``instead``: what R has."""
    if not why:
        return []
    said = f"{named_tasks([*why])} {'was' if len(why) == 1 else 'were'} not measured again"
    reasons = {task: reason.rstrip(".") for task, reason in why.items()}
    if len({*reasons.values()}) == 1:
        return [f"{said}, because {next(iter(reasons.values()))}. {instead}"]
    each = [f"for {task!r}, {reason}" for task, reason in reasons.items()]
    more = [f"and so on for {len(each) - _NAMED} more tasks"] if len(each) > _NAMED else []
    return [f"{said}: {'; '.join(each[:_NAMED] + more)}. {instead}"]


def _choose(session: Session, after: str, earlier: list[CommitLine]) -> tuple[set[str], set[str]]:
    """Return which earlier tasks to measure and which to certify."""
    policy = session.spec.evaluate
    # A shared bank has changed, so scores of its tasks can be measured but not certified.
    shared = {commit.task for commit in earlier if commit.shared}
    own = [commit.task for commit in earlier if not commit.shared]
    if policy == "auto":
        policy = "all" if len(earlier) < MEASURE_ALL_UP_TO else "certified"
    if policy == "all":
        return {commit.task for commit in earlier}, set()
    generator = torch.Generator().manual_seed(derive_seed(session.spec.seed, after, "row"))
    num_measured = _SAMPLE if policy == "sample" else 0
    measured = {own[number] for number in torch.randperm(len(own), generator=generator).tolist()[:num_measured]}
    rest = [task for task in own if task not in measured]
    complete = after == session.spec.tasks[-1].name and len(rest) <= affordable(session)
    # These are the tasks that the gate samples for this row, so it need not check them again.
    return shared | measured, set(rest) if complete else rotating(rest, len(earlier), _CHECKED)


def affordable(session: Session) -> int:
    """Return the maximum number of certificates to check when a command ends: proportional to the tasks that it learned."""
    return _CHECKED * max(1, session.num_new)


def _measure(session: Session, task: str) -> float | None:
    """Return a score; None if it is undefined.

    Raises:
        _NotMeasurable: if the rows are not available, or are not the certified ones.
    """
    split = certified_rows(session, task, session.split)
    if isinstance(split, str):
        raise _NotMeasurable(split)
    try:
        session.load_metric(task)
    except InputError as error:
        raise _NotMeasurable(str(error)) from error
    with predicting(session.models, task) as (learner, _):
        split_scores = evaluate(session, learner, split.rows)
    return split_scores.scores.get(session.store.certificate(task).metric)
