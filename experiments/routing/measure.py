"""Measure one stream: routing end to end and by task, with all forms of the statistics, and other classifiers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from continual_petl.engine.run import Run
from continual_petl.predictor.records import Row
from continual_petl.report.routed_results import RoutedResults
from experiments.routing.ablation import Foreign, ablation
from experiments.routing.compare import Tell, which_class, which_task
from experiments.routing.models import models
from experiments.routing.read import Rows, TaskRows, read_rows, read_tasks
from experiments.routing.routes import Routes, equal_bit_for_bit, in_order, same_as_measured
from experiments.routing.statistics import FORMS, num_bytes, statistics
from experiments.routing.streams import (
    CLASSIC,
    LONG,
    ORDERS,
    SEED,
    TEXTS,
    Scale,
    class_stream,
    foreign_texts,
    learned,
    long_stream,
)

Known = dict[str, TaskRows]
"""Tasks of the long stream that an earlier part has already read."""


def classic(data: Path, runs: Path, scale: Scale, tell: Tell, known: Known, oos: Sequence[str]) -> dict[str, Any]:
    """Measure the classic five tasks, in three orders."""
    run = learned(long_stream(data, scale, CLASSIC), runs / "long")
    tasks = _read(run, CLASSIC, known)
    found, routes = _measured(run, tasks, ORDERS, False, {}, tell)
    return found | {"which_task": which_task(routes, scale.features, tell)}


def long(data: Path, runs: Path, scale: Scale, tell: Tell, known: Known, oos: Sequence[str]) -> dict[str, Any]:
    """Measure the long stream, and what a router that knows only the five classic tasks does with the other tasks."""
    run = learned(long_stream(data, scale, LONG), runs / "long")
    tasks = _read(run, LONG, known)
    found, routes = _measured(run, tasks, _orders(LONG), False, {}, tell)
    first = [task for task in tasks if task.name in CLASSIC]
    single = run.store.certificate(CLASSIC[0])
    texts, firsts = dict[str, Rows](), dict[str, Rows]()
    for task in tasks:
        rows = task.splits["test"]
        if task.pair:
            firsts[task.name] = read_rows(run, [row[0] for row in rows.rows if isinstance(row, tuple)], single)
        elif task not in first:
            texts[task.name] = rows
    return found | {
        "which_task": which_task(routes, scale.features, tell),
        "classic": ablation(first, False, {"texts": texts, "first texts of pairs": firsts}, tell),
    }


def classes(data: Path, runs: Path, scale: Scale, tell: Tell, known: Known, oos: Sequence[str]) -> dict[str, Any]:
    """Measure CLINC150, split into tasks of a few classes each."""
    run = learned(class_stream(data, scale), runs / "classes")
    names = tuple(run.store.tasks)
    tasks = read_tasks(run, names)
    certificate = run.store.certificate(names[0])

    def foreign(rows: Sequence[Row]) -> Rows:
        return read_rows(run, rows, certificate)

    groups = {"other data sets": {name: foreign(foreign_texts(data, scale, name)) for name in TEXTS}}
    if oos:
        groups["out of scope"] = {"out of scope": foreign(oos)}
    found, routes = _measured(run, tasks, _orders(names), True, groups, tell)
    cells = found["tasks"]
    right = sum(task["correct"] or 0 for task in cells) / sum(task["rows"]["test"] for task in cells)
    found["end"]["accuracy_of_all_rows"] = right
    return found | {"which_class": which_class(routes, scale.features, tell)}


def joint(data: Path, runs: Path, scale: Scale, tell: Tell, known: Known, oos: Sequence[str]) -> dict[str, Any]:
    """Learn one bank on all classes of CLINC150 at once."""
    run = learned(class_stream(data, scale, split=False), runs / "joint")
    (task,) = run.store.tasks
    scores = run.store.certificate(task).scores
    return {split: scores[split].scores["accuracy"] for split in ("validation", "test")}


def one_model(data: Path, runs: Path, scale: Scale, tell: Tell, known: Known, oos: Sequence[str]) -> dict[str, Any]:
    """Learn the classic five tasks with one model for all of them."""
    return models(data, scale, tell)


MEASURES = {"classic": classic, "long": long, "classes": classes, "joint": joint, "models": one_model}


def _read(run: Run, names: Sequence[str], known: Known) -> list[TaskRows]:
    """Read tasks, unless they are known."""
    known |= {task.name: task for task in read_tasks(run, [name for name in names if name not in known])}
    return [known[name] for name in names]


def _orders(names: Sequence[str]) -> tuple[Sequence[str], ...]:
    """Return three orders: the stream's own, the opposite one, and a drawn one."""
    return names, names[::-1], random.Random(SEED).sample(names, len(names))


def _measured(
    run: Run, tasks: Sequence[TaskRows], orders: Sequence[Sequence[str]], by_label: bool, foreign: Foreign, tell: Tell
) -> tuple[dict[str, Any], Routes]:
    """Return what all streams measure, and the router of the stored statistics."""
    by_name = {task.name: task for task in tasks}
    stored = {task.name: task.stored for task in tasks}
    routes = Routes(tasks, stored, by_label)
    own = in_order(tasks, stored, by_label, distances=True)
    ordered = [[by_name[name] for name in order] for order in orders]
    measured = run.results.routed
    tell(f"{run.spec.name}: routed")
    forms = {}
    for form in FORMS:
        sums = statistics(tasks, form, stored=None if form == "first" else stored)
        own_routes, sizes = Routes(tasks, sums, by_label), num_bytes(sums)
        forms[form] = {
            "layers": list(own_routes.layers),
            "bytes": {"least": min(sizes), "most": max(sizes), "mean": float(np.mean(sizes))},
            **_end(own_routes),
        }
    return {
        "stored": "full" if "covariance_U" in tasks[0].stored.to_arrays() else "compact",
        "tasks": _of_tasks(routes, own),
        "end": _end(routes) | _over_steps(own),
        "validation": _end(routes, "validation"),
        "forms": forms,
        "orders": [in_order(order, stored, by_label).to_json() for order in ordered],
        "equal_bit_for_bit": equal_bit_for_bit(ordered, stored),
        "same_as_measured": measured is not None and same_as_measured(own, measured),
        "ablation": ablation(tasks, by_label, foreign, tell),
    }, routes


def _of_tasks(routes: Routes, found: RoutedResults) -> list[dict[str, Any]]:
    cells = found.rows[-1]
    return [
        {
            "task": task.name,
            "rows": {name: len(split.rows) for name, split in task.splits.items()},
            "means": len(task.stored.counts_C),
            "scores": task.scores,
            "named": _named(routes, number),
            **cells[task.name].model_dump(include={"chosen", "unknown", "correct", "correct_own", "correct_known"}),
        }
        for number, task in enumerate(routes.tasks)
    ]


def _named(routes: Routes, number: int, split: str = "test") -> int | None:
    """Return the number of rows that the task's own bank predicts correctly, without the frozen states."""
    task = routes.tasks[number]
    rows = task.splits[split]
    if not task.labels:
        return None
    return int(routes.right(task, rows, np.full(len(rows.rows), number), weight=0.0).sum())


def _end(routes: Routes, split: str = "test") -> dict[str, float]:
    """Return means over tasks after the last task; means of correct predictions are over graded tasks only."""
    cells = routes.cells(split)
    named = {task.name: _named(routes, number, split) for number, task in enumerate(routes.tasks)}
    graded = [cells[task.name] for task in routes.tasks if task.labels]
    right_own = sum(cell.correct_own or 0 for cell in graded)
    return {
        "named": float(np.mean([(named[cell.task] or 0) / cell.num_examples for cell in graded])),
        "nearest": float(np.mean([(cell.correct or 0) / cell.num_examples for cell in graded])),
        "reject": float(np.mean([(cell.correct_known or 0) / cell.num_examples for cell in graded])),
        "routing": float(np.mean([cell.chosen.get(cell.task, 0) / cell.num_examples for cell in cells.values()])),
        "within_task": right_own / max(1, sum(cell.chosen.get(cell.task, 0) for cell in graded)),
        "unknown": float(np.mean([cell.unknown / cell.num_examples for cell in cells.values()])),
    }


def _over_steps(found: RoutedResults) -> dict[str, float]:
    scores = found.after(len(found.tasks))
    return {name: scores[name] for name in ("routing_loss", "average_incremental_accuracy")}
