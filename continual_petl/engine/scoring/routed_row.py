"""One row of the matrix R-routed: how well rows of learned tasks are predicted without their task's name.

Predictions with a named task never change. Predictions without a name can change if a new task resembles an earlier one, so
they are measured again after each task. The states of the frozen backbone are the same every time and are kept in memory.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from continual_petl.engine.scoring.evaluate import certified_rows
from continual_petl.engine.session import Session
from continual_petl.errors import InputError, counted
from continual_petl.heads.predictions import Prediction
from continual_petl.kind_registry import kind_of
from continual_petl.predictor.predictor import Predictor
from continual_petl.predictor.records import Row
from continual_petl.predictor.task_finder import States, TaskFinder, found_predictions, task_finder
from continual_petl.report.routed_results import is_low
from continual_petl.router.sums import Array
from continual_petl.router.task_sums import drawn_rows
from continual_petl.store.certificate.certificate import ROUTER, Certificate
from continual_petl.store.ledger.lines import RoutedCell
from continual_petl.streams.protocols.rules import evaluated_by_label

_MAX_KEPT = 20
_NAMED = 5
"""Maximum number of tasks that a notice names."""


class RoutedRows:
    """A task's rows, with everything that later tasks do not change: the backbone's states and the bank's predictions.

    Args:
        session: the run.
        certificate: the certificate of the task.
        rows: its rows.
        labels: their true labels.
    """

    def __init__(self, session: Session, certificate: Certificate, rows: list[Row], labels: list[Any]) -> None:
        self.seal = certificate.seal
        self.rows = rows
        self.labels = labels
        self.states: States = {}
        self.vectors: dict[int, Array] = {}
        self.named: dict[int, Prediction] = {}
        if kind_of(certificate).has_one_vector:
            self.named = predicted(session, rows, dict.fromkeys(range(len(rows)), certificate.task), self.vectors)


def predicted(
    session: Session, rows: list[Row], tasks: Mapping[int, str], vectors: dict[int, Array]
) -> dict[int, Prediction]:
    """Return what banks predict for rows, and store what they give to their heads, for heads that read one vector per row."""
    predictor, certificates = (
        Predictor(session.models),
        {task: session.store.certificate(task) for task in {*tasks.values()}},
    )
    by_size: dict[int, dict[int, str]] = {}
    for index, task in tasks.items():
        if kind_of(certificates[task]).has_one_vector:
            by_size.setdefault(certificates[task].training.evaluation[0], {})[index] = task
    found: dict[int, Prediction] = {}
    for size, own in by_size.items():
        found |= predictor.resume(rows, own, None, batch_size=size, vectors=vectors)
    return found


_kept: WeakKeyDictionary[Session, OrderedDict[str, RoutedRows]] = WeakKeyDictionary()


def routed_cells(session: Session, tasks: Iterable[str], new: str) -> tuple[tuple[RoutedCell, ...], list[str]]:
    """Return how the given tasks' rows are routed now, and notices for the user; nothing if no task has routing statistics.

    Args:
        session: the run.
        tasks: learned tasks; those whose rows are not available, or that stored no routing statistics, are left out.
        new: the task that was learned last.

    Raises:
        Interrupted: between two tasks, if a stop was requested.
    """
    store = session.store
    certificates = {task: certificate for task in tasks if ROUTER in (certificate := store.certificate(task)).files}
    if not certificates:
        return (), []
    try:
        finder = task_finder(session.models)
    except InputError as error:
        return (), [f"rows without a task name were not evaluated: {error}"]
    cells = []
    for task, certificate in certificates.items():
        session.request.stop_here(f"while rows of task {task!r} were being routed; the task is committed")
        if (rows := _rows(session, certificate)) is not None:
            cells.append(_cell(session, finder, certificate, rows))
    return tuple(cells), indistinguishable(cells, new)


def _rows(session: Session, certificate: Certificate) -> RoutedRows | None:
    task, kept = certificate.task, _kept.setdefault(session, OrderedDict())
    if task not in kept or kept[task].seal != certificate.seal:
        checked = certified_rows(session, task, session.rows)
        if isinstance(checked, str):
            return None
        chosen = checked.take(np.asarray(drawn_rows(len(checked), certificate.seed), dtype=np.int64))
        rows: list[Row] = chosen.inputs
        if (beside := chosen.pairs or chosen.options) is not None:
            rows = list(zip(chosen.inputs, beside, strict=True))
        kept[task] = RoutedRows(session, certificate, rows, chosen.names)
        while len(kept) > _MAX_KEPT:
            kept.popitem(last=False)
    return kept[task]


def _cell(session: Session, finder: TaskFinder, certificate: Certificate, rows: RoutedRows) -> RoutedCell:
    rows.states = finder.states(session.models, rows.rows, known=rows.states)
    routes = finder.routes(rows.rows, rows.states)
    own = [route.task == certificate.task for route in routes]

    def predict(tasks: Mapping[int, str], vectors: dict[int, Array]) -> dict[int, Prediction]:
        vectors |= rows.vectors
        astray = {index: task for index, task in tasks.items() if task != certificate.task}
        return {index: rows.named[index] for index in tasks.keys() - astray if index in rows.named} | predicted(
            session, rows.rows, astray, vectors
        )

    predictions, distances = found_predictions(finder, dict(enumerate(routes)), {}, predict)
    right = None
    if kind_of(certificate).has_one_label:
        by_label = evaluated_by_label(session.spec.protocol)
        right = [
            (here or by_label) and index in predictions and predictions[index].value == label
            for index, (here, label) in enumerate(zip(own, rows.labels, strict=True))
        ]
    known = [not distances[index].rejected for index in range(len(routes))]
    chosen = Counter(route.task for route in routes)
    return RoutedCell(
        task=certificate.task,
        index=session.store.commit(certificate.task).index,
        split=certificate.counted_split,
        num_examples=len(routes),
        chosen=dict(sorted(chosen.items(), key=lambda item: (-item[1], item[0]))),
        unknown=known.count(False),
        correct=None if right is None else sum(right),
        correct_own=None if right is None else sum(map(all, zip(right, own, strict=True))),
        correct_known=None if right is None else sum(map(all, zip(right, known, strict=True))),
    )


def indistinguishable(cells: Sequence[RoutedCell], new: str) -> list[str]:
    """Return one notice about tasks that the router confuses with a new one; an empty list if there are none.

    That is the new task if fewer than 80 % of its rows are recognised as its own, and each earlier task of which this is
    true and whose rows the new task takes: fewer than 80 % of those that go to either of the two go to the right one. So
    what was reported about earlier tasks when they were learned is not repeated.

    Args:
        cells: how the rows of the tasks are routed now.
        new: the task that was learned last.
    """
    confused: list[tuple[float, str]] = []
    for cell in cells:
        own, taken = cell.chosen.get(cell.task, 0), cell.chosen.get(new, 0)
        if not (is_low(own, cell.num_examples) and (cell.task == new or is_low(own, own + taken))):
            continue
        others = [task for task in cell.chosen if task != cell.task] if cell.task == new else [new]
        shares = ", ".join(f"{cell.chosen[other] / cell.num_examples:.0%} to {other!r}" for other in others[:_NAMED])
        more = f", the rest to {counted(len(others) - _NAMED, 'more task')}" if len(others) > _NAMED else ""
        words = f"{cell.task!r} ({own / cell.num_examples:.0%} of its rows go to itself, {shares}{more})"
        confused.append((cell.chosen[others[0]] / cell.num_examples, words))
    if not confused:
        return []
    confused.sort(key=lambda each: -each[0])
    words = "; ".join(words for _, words in confused[:_NAMED])
    more = f"; and {counted(len(confused) - _NAMED, 'more task')}" if len(confused) > _NAMED else ""
    return [
        f"without a task's name, rows of {new!r} and of tasks learned before it are hardly told apart: {words}{more}. The "
        "frozen backbone sees too little difference, as between tasks that ask different questions about the same inputs. "
        "Name the task of these rows; or ask for what each of the most probable tasks predicts (`--candidates 3`, or "
        "`predict(rows, candidates=3)`); or learn the questions as one task. Predictions with a named task are unchanged."
    ]
