"""One row of the matrix R-routed: how well rows of learned tasks are predicted without their task's name.

Predictions with a named task never change. Predictions without a name can change if a new task resembles an earlier one, so
they are measured again after each task. The states of the frozen backbone are the same every time and are kept in memory.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from continual_petl.engine.scoring.evaluate import certified_rows
from continual_petl.engine.session import Session
from continual_petl.errors import InputError
from continual_petl.kind_registry import kind_of
from continual_petl.predictor.predictor import Predictor
from continual_petl.predictor.records import Row
from continual_petl.predictor.task_finder import Route, States, TaskFinder, task_finder
from continual_petl.router.task_sums import drawn_rows
from continual_petl.store.certificate.certificate import ROUTER, Certificate
from continual_petl.store.ledger.lines import RoutedCell
from continual_petl.streams.protocols.rules import evaluated_by_label

LOW = 0.8
"""If a smaller share of a new task's rows is routed to it, this is reported as soon as the task has been learned."""
_MAX_KEPT = 20


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
        self.named: list[Any] | None = None
        if kind_of(certificate).has_one_label:
            size, _ = certificate.training.evaluation
            predictions = Predictor(session.models).predict_each(rows, [certificate.task] * len(rows), batch_size=size)
            self.named = [prediction.value for prediction in predictions]


_kept: WeakKeyDictionary[Session, OrderedDict[str, RoutedRows]] = WeakKeyDictionary()


def routed_cells(session: Session, tasks: Iterable[str]) -> tuple[tuple[RoutedCell, ...], list[str]]:
    """Return how the given tasks' rows are routed now, and notices for the user; nothing if no task has routing statistics.

    Args:
        session: the run.
        tasks: learned tasks, the newest one last; those whose rows are not available, or that stored no routing statistics,
            are left out.

    Raises:
        Interrupted: between two tasks, if a stop was requested.
    """
    store, tasks = session.store, list(tasks)
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
    return tuple(cells), [notice for cell in cells[-1:] if cell.task == tasks[-1] for notice in _low(cell)]


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
    right = None if rows.named is None else _right(session, rows, rows.named, routes, own)
    known = [not route.unknown for route in routes]
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


def _right(session: Session, rows: RoutedRows, named: list[Any], routes: list[Route], own: list[bool]) -> list[bool]:
    """Return, for each row, whether its prediction without a named task is right as the stream's protocol defines it."""
    if not evaluated_by_label(session.spec.protocol):
        return [here and value == label for here, value, label in zip(own, named, rows.labels, strict=True)]
    values, astray = list(named), [index for index, here in enumerate(own) if not here]
    if astray:
        inputs, tasks = [rows.rows[index] for index in astray], [routes[index].task for index in astray]
        for index, prediction in zip(astray, Predictor(session.models).predict_each(inputs, tasks), strict=True):
            values[index] = prediction.value
    return [value == label for value, label in zip(values, rows.labels, strict=True)]


def _low(cell: RoutedCell) -> list[str]:
    share = cell.chosen.get(cell.task, 0) / cell.num_examples
    if share >= LOW:
        return []
    others = ", ".join(f"{task} {count}" for task, count in cell.chosen.items() if task != cell.task)
    return [
        f"task {cell.task!r}: without its name, only {share:.1%} of its {cell.num_examples} {cell.split} rows are recognised "
        f"as its own (others: {others}): the frozen backbone hardly tells these tasks apart. "
        "Name the task, or use another backbone."
    ]
