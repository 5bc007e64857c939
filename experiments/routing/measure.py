"""Measure one stream: routing from the stored statistics, end to end and by task, and compared with other classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from continual_petl.engine.run import Run
from continual_petl.predictor.task_finder import task_finder
from continual_petl.report.routed_results import RoutedResults
from experiments.routing.both import joined_with_banks, to_ask
from experiments.routing.compare import Tell, which_class, which_task
from experiments.routing.models import models
from experiments.routing.read import TaskRows, predicted, read_tasks, states_of
from experiments.routing.routes import cells_after, equal_bit_for_bit, in_order, same_as_measured
from experiments.routing.streams import CLASSIC, LONG, ORDERS, Scale, class_stream, learned, long_stream
from experiments.routing.unknown import told_apart

Known = dict[str, TaskRows]
"""Tasks of the long stream that an earlier part has already read."""


def classic(data: Path, runs: Path, scale: Scale, tell: Tell, known: Known) -> dict[str, Any]:
    """Measure the classic five tasks, in three orders."""
    run = learned(long_stream(data, scale, CLASSIC), runs / "long")
    tasks = _answered(run, CLASSIC, known)
    by_name = {task.name: task for task in tasks}
    orders = [[by_name[name] for name in order] for order in ORDERS]
    found = [in_order(order, by_label=False) for order in orders]
    most = max(len(set(task.splits["train"].labels)) for task in tasks)
    for task in tasks:
        predicted(run, task, "validation", CLASSIC, to_ask(tasks, task, most))
    tell("classic: routed")
    return {
        "tasks": _of_tasks(tasks, found[0]),
        "end": _end(tasks, found[0]),
        "orders": [each.to_json() for each in found],
        "equal_bit_for_bit": equal_bit_for_bit(orders),
        "same_as_measured": _same(run, found[0]),
        "validation": _validation(tasks, by_label=False),
        "which_task": which_task(tasks, scale.features, tell),
        "with_banks": joined_with_banks(tasks, by_label=False),
    }


def long(data: Path, runs: Path, scale: Scale, tell: Tell, known: Known) -> dict[str, Any]:
    """Measure the long stream, and what a router that knows only the five classic tasks does with the other tasks."""
    run = learned(long_stream(data, scale, LONG), runs / "long")
    tasks = _answered(run, LONG, known)
    found = in_order(tasks, by_label=False)
    tell("long: routed")
    first = [task for task in tasks if task.name in CLASSIC]
    others = [task for task in tasks if task.name not in CLASSIC]
    finder = task_finder(run.session.models)
    firsts = {
        task.name: states_of(run, finder, [row[0] for row in task.splits["test"].rows if isinstance(row, tuple)], False)
        for task in others
        if task.pair
    }
    return {
        "tasks": _of_tasks(tasks, found),
        "end": _end(tasks, found),
        "routed": found.to_json(),
        "same_as_measured": _same(run, found),
        "validation": _validation(tasks, by_label=False),
        "which_task": which_task(tasks, scale.features, tell),
        "unknown": told_apart(first, others, firsts),
    }


def classes(data: Path, runs: Path, scale: Scale, tell: Tell, known: Known) -> dict[str, Any]:
    """Measure CLINC150, split into tasks of a few classes each."""
    run = learned(class_stream(data, scale), runs / "classes")
    names = tuple(run.store.tasks)
    tasks = read_tasks(run, names)
    for task in tasks:
        predicted(run, task, "validation", names)
        predicted(run, task, "test", names)
    found = in_order(tasks, by_label=True)
    tell("classes: routed")
    return {
        "tasks": _of_tasks(tasks, found),
        "end": _end(tasks, found) | {"accuracy_of_all_rows": _of_all_rows(found)},
        "routed": found.to_json(),
        "same_as_measured": _same(run, found),
        "validation": _validation(tasks, by_label=True),
        "which_task": which_task(tasks, scale.features, tell, others=False),
        "which_class": which_class(tasks, scale.features, tell),
        "with_banks": joined_with_banks(tasks, by_label=True),
    }


def one_model(data: Path, runs: Path, scale: Scale, tell: Tell, known: Known) -> dict[str, Any]:
    """Learn the classic five tasks with one model for all of them."""
    return models(data, scale, tell)


MEASURES = {"classic": classic, "long": long, "classes": classes, "models": one_model}


def _answered(run: Run, names: Sequence[str], known: Known) -> list[TaskRows]:
    """Read tasks, unless they are known, and predict each task's validation and test rows with its own bank."""
    known |= {task.name: task for task in read_tasks(run, [name for name in names if name not in known])}
    tasks = [known[name] for name in names]
    for task in tasks:
        predicted(run, task, "validation", [task.name])
        predicted(run, task, "test", [task.name])
    return tasks


def _of_tasks(tasks: Sequence[TaskRows], found: RoutedResults) -> list[dict[str, Any]]:
    cells = found.rows[-1]
    return [
        {
            "task": task.name,
            "rows": {name: len(split.rows) for name, split in task.splits.items()},
            "means": len(task.sums.counts_C),
            "scores": task.scores,
            "named": _named(task),
            **cells[task.name].model_dump(include={"chosen", "unknown", "correct", "correct_own", "correct_known"}),
        }
        for task in tasks
    ]


def _named(task: TaskRows, split: str = "test") -> int | None:
    """Return the number of rows that the task's own bank predicts correctly."""
    rows = task.splits[split]
    if not task.graded:
        return None
    return sum(value == label for value, label in zip(rows.answers[task.name].values, rows.labels, strict=True))


def _end(tasks: Sequence[TaskRows], found: RoutedResults, split: str = "test") -> dict[str, float]:
    """Return means over tasks after the last task; means of correct predictions are over graded tasks only."""
    cells, named = found.rows[-1], {task.name: _named(task, split) for task in tasks}
    graded = [cells[task.name] for task in tasks if task.graded]
    right_own = sum(cell.correct_own or 0 for cell in graded)
    return {
        "named": float(np.mean([(named[cell.task] or 0) / cell.num_examples for cell in graded])),
        "nearest": float(np.mean([(cell.correct or 0) / cell.num_examples for cell in graded])),
        "reject": float(np.mean([(cell.correct_known or 0) / cell.num_examples for cell in graded])),
        "routing": float(np.mean([cell.chosen.get(cell.task, 0) / cell.num_examples for cell in cells.values()])),
        "within_task": right_own / max(1, sum(cell.chosen.get(cell.task, 0) for cell in graded)),
        "unknown": float(np.mean([cell.unknown / cell.num_examples for cell in cells.values()])),
        "routing_loss": found.after(len(tasks))["routing_loss"],
        "average_incremental_accuracy": found.after(len(tasks))["average_incremental_accuracy"],
    }


def _validation(tasks: Sequence[TaskRows], by_label: bool) -> dict[str, float]:
    cells = cells_after(tasks, by_label, "validation")
    found = RoutedResults(tasks=tuple(task.name for task in tasks), rows=({},) * (len(tasks) - 1) + (cells,))
    wanted = ("named", "nearest", "reject", "routing", "within_task", "unknown")
    return {name: value for name, value in _end(tasks, found, "validation").items() if name in wanted}


def _of_all_rows(found: RoutedResults) -> float:
    cells = found.rows[-1].values()
    return sum(cell.correct or 0 for cell in cells) / sum(cell.num_examples for cell in cells)


def _same(run: Run, found: RoutedResults) -> bool:
    measured = run.results.routed
    return measured is not None and same_as_measured(found, measured)
