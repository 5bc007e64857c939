"""One row of the result matrix: the score of every learned task after a new one, and how each is known."""

from __future__ import annotations

from typing import NamedTuple

import torch

from continual_petl.course.evaluate import evaluate
from continual_petl.course.session import Session
from continual_petl.course.signals import StopRequest
from continual_petl.errors import ForgettingError, InputError, counted
from continual_petl.seeding import derive_seed
from continual_petl.store.chain import Link
from continual_petl.store.finding import TaskCheck
from continual_petl.store.results_file import Cell, RowLine, Status
from continual_petl.store.verify import check_task, rotating

MEASURE_ALL_UP_TO = 20
"""``evaluate: auto`` measures every earlier task up to this many, and certifies beyond."""
_MEASURED: Status = "measured"
_CERTIFIED: Status = "certified"
_NOT_MEASURED: Status = "not measured"
_SAMPLE = 5
_CHECKED = 20


class _NotMeasurable(Exception):
    """The rows that an earlier task was measured on are not available; the message says why."""


class Row(NamedTuple):
    """What is known of every task after a new one."""

    line: RowLine
    notices: list[str]
    """What the user should know."""
    checks: dict[str, TaskCheck]
    """Of the earlier tasks whose certificates were checked for it."""


def measure_row(session: Session, after: str, request: StopRequest | None = None) -> Row:
    """Return the row of R after learning a task.

    Whatever the policy, the cost is bounded: beyond `MEASURE_ALL_UP_TO` tasks a row measures and certifies samples, and
    only the last row of a stream is complete, if the command learned so many tasks that it costs no more than they did (see
    `affordable`). Cells that nobody looked at are left out: they are not measured. If the rows of a task that is to be
    measured are not available, its certificate is checked and its certified score carried over, unless the stream asks for
    ``evaluate: all``.

    Raises:
        ForgettingError: if a certificate does not hold.
        Interrupted: between two cells, if a stop was asked for.
    """
    store = session.store
    links = store.links()
    index = [link.task for link in links].index(after)
    cells: list[Cell] = []
    gone: dict[str, str] = {}
    checks: dict[str, TaskCheck] = {}
    measured, certified, unread = _readable(session, *_choose(session, after, links[:index]))
    for link in links[: index + 1]:
        task = link.task
        if task != after and task not in measured | certified | unread:
            continue
        if request is not None:
            request.stop_here(f"while the row of task {after!r} was measured; the task is committed")
        manifest = store.manifest(task)
        split = manifest.counted_split
        value, status = manifest.score, _MEASURED
        if task in measured:
            try:
                value = _measure(session, task, manifest.data[split])
            except _NotMeasurable as error:
                stays = session.spec.evaluate != "all" and not link.shared
                (certified if stays else unread).add(task)
                gone[task] = str(error)
        if task in unread:
            value, status = None, _NOT_MEASURED
        elif task in certified:
            checks[task] = check_task(store, task, session.residents.backbone_of(task))
            if not checks[task].ok:
                raise ForgettingError(" ".join(checks[task].problems))
            status = _CERTIFIED
        cells.append(
            Cell(
                task=task,
                index=link.index,
                split=split,
                metric=manifest.metric,
                value=value,
                num_examples=manifest.scores[split].num_examples,
                status=status,
            )
        )
    carried = {task: why for task, why in gone.items() if task in certified}
    left = {task: why for task, why in gone.items() if task in unread}
    notices = [*_not_read(unread - left.keys()), *_carried(carried), *_left(left), *session.untold()]
    return Row(RowLine(after=after, index=links[index].index, cells=tuple(cells)), notices, checks)


def _not_read(unread: set[str]) -> list[str]:
    """Return one notice, however many tasks there are whose test rows this course leaves unread."""
    if not unread:
        return []
    tasks = ("task " if len(unread) == 1 else "tasks ") + ", ".join(map(repr, sorted(unread)))
    return [
        f"{tasks} {'was' if len(unread) == 1 else 'were'} not measured again, because this course reads no test split (test)."
    ]


def _carried(gone: dict[str, str]) -> list[str]:
    """Return one notice, however many tasks there are whose certified scores stand for measurements."""
    if not gone:
        return []
    whose, scores = ("its", "score stands") if len(gone) == 1 else ("their", "scores stand")
    return [
        f"{_not_again(gone)} Instead, {whose} certified {scores} in R (status: certified); "
        f"{counted(len(gone), 'certificate')} {'was' if len(gone) == 1 else 'were'} checked for that."
    ]


def _left(gone: dict[str, str]) -> list[str]:
    """Return one notice, however many tasks there are whose scores are not known: by evaluate: all, or of shared banks."""
    if not gone:
        return []
    return [
        f"{_not_again(gone)} With evaluate: auto, certified scores are carried over (but of shared banks, which have changed "
        "since they were certified)."
    ]


def _not_again(gone: dict[str, str]) -> str:
    first, why = next(iter(gone.items()))
    if len(gone) == 1:
        return f"task {first!r} was not measured again, because {why.rstrip('.')}."
    tasks = ", ".join(map(repr, gone))
    return f"tasks {tasks} were not measured again; of {first!r}: {why.rstrip('.')}."


def _choose(session: Session, after: str, earlier: list[Link]) -> tuple[set[str], set[str]]:
    """Return which earlier tasks to measure and which to certify."""
    policy = session.spec.evaluate
    # A shared bank has moved on, so its answers can only be measured.
    shared = {link.task for link in earlier if link.shared}
    own = [link.task for link in earlier if not link.shared]
    if policy == "auto":
        policy = "all" if len(earlier) < MEASURE_ALL_UP_TO else "certified"
    if policy == "all":
        return {link.task for link in earlier}, set()
    generator = torch.Generator().manual_seed(derive_seed(session.spec.seed, after, "row"))
    num_measured = _SAMPLE if policy == "sample" else 0
    measured = {own[number] for number in torch.randperm(len(own), generator=generator).tolist()[:num_measured]}
    rest = [task for task in own if task not in measured]
    complete = after == session.spec.tasks[-1].name and len(rest) <= affordable(session)
    # Those whose turn it is for `NoForgetting` too, which need not look at them again.
    return shared | measured, set(rest) if complete else rotating(rest, len(earlier), _CHECKED)


def affordable(session: Session) -> int:
    """Return how many certificates are checked at the end of a command at most: so many for every task that it learned."""
    return _CHECKED * max(1, session.num_new)


def _readable(session: Session, measured: set[str], certified: set[str]) -> tuple[set[str], set[str], set[str]]:
    """Return which tasks to measure, which to certify, and which can be neither, where test splits are not read."""
    if session.reads_test:
        return measured, certified, set()
    store = session.store
    unread = {task for task in measured if "test" in store.manifest(task).scores}
    # A shared bank has moved on from its certificate; and with evaluate: all no certificate stands for a measurement.
    stays = set() if session.spec.evaluate == "all" else {task for task in unread if not store.link(task).shared}
    return measured - unread, certified | stays, unread - stays


def _measure(session: Session, task: str, digest: str) -> float | None:
    """Return a score; None if it is not defined.

    Raises:
        _NotMeasurable: if the rows are not available, or not those with this digest.
    """
    spec = next((spec for spec in session.spec.tasks if spec.name == task), None)
    if spec is None:
        raise _NotMeasurable("it is not in the stream any more")
    try:
        split = session.split(spec)
    except InputError as error:
        raise _NotMeasurable(f"its data is not available ({error})") from error
    if split.digest != digest:
        raise _NotMeasurable("its rows are not those it was learned with")
    learner = session.residents.resident(task)
    rows, pad = split.rows, session.residents.pad_token_id
    scores = evaluate(learner, rows, pad, session.spec.trainer, session.folder).scores
    return scores.get(session.store.manifest(task).metric)
