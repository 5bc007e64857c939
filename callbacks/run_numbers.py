"""The values that loggers receive after each task: the metrics that `Results` computes, under the names that are logged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from continual_petl.report.results import ResultRow, Results
from continual_petl.report.routed_results import routed_results
from continual_petl.store.folder.results_file import MeasuredScore, RoutedCell

MAX_SCORES = 50
"""Number of tasks, counted from the first, whose scores are logged by name after every further task."""
NO_TASKS = Results(tasks=(), metrics=(), splits=(), rows=(), seconds={})


def joined(
    results: Results,
    cells: Sequence[MeasuredScore],
    routed: Sequence[RoutedCell] = (),
    gain: float | None = None,
) -> Results:
    """Return the matrix with the row of a further task appended, so that earlier rows are not read again.

    Args:
        results: the matrix of the earlier tasks.
        cells: the cells of the row; the last is the cell of the task itself.
        routed: the cells that were measured without naming a task.
        gain: the task's gain over a fresh bank, if it tried several starting points.
    """
    own = cells[-1]
    column_of = {name: number for number, name in enumerate((*results.tasks, own.task))}
    known = sorted(
        (cell for cell in cells if cell is own or cell.status != "not measured"),
        key=lambda cell: column_of[cell.task],
    )
    row = ResultRow(
        columns=np.array([column_of[cell.task] for cell in known]),
        values=np.array([math.nan if cell.value is None else cell.value for cell in known], dtype=np.float64),
        status=tuple(cell.status for cell in known),
    )
    return replace(
        results,
        tasks=tuple(column_of),
        metrics=(*results.metrics, own.metric),
        splits=(*results.splits, own.split),
        rows=(*results.rows, row),
        gains=results.gains if gain is None else {**results.gains, own.task: gain},
        routed_rows=(*results.routed_rows, {cell.task: cell for cell in routed}),
    )


def first(results: Results, count: int) -> Results:
    """Return the matrix of the first ``count`` tasks."""
    return Results(
        tasks=results.tasks[:count],
        metrics=results.metrics[:count],
        splits=results.splits[:count],
        rows=results.rows[:count],
        seconds={},
        gains={task: gain for task, gain in results.gains.items() if task in results.tasks[:count]},
        routed_rows=results.routed_rows[:count],
    )


def numbers_after(results: Results, count: int) -> dict[str, float]:
    """Return the metrics after a number of tasks.

    Returns:
        ``run/...``, ``score/TASK`` of the first tasks, ``transfer/...`` for tasks that tried several starting points, and
        ``routed/...`` for rows without a task name; NaN and infinite values are left out.
    """
    row, averages = results.rows[count - 1], results.after(count)
    changes = np.abs(row.values - results.own[row.columns])[:-1]
    numbers = {
        "run/tasks": float(count),
        "run/newest_score": row.values[-1],
        "run/acc": averages["ACC"],
        "run/bwt": averages["BWT"],
        "run/forgetting": averages["forgetting"],
        "run/largest_change": np.max(changes[~np.isnan(changes)], initial=-math.inf),
        "run/certified": float(row.status.count("certified")),
    }
    scores = zip(row.columns, row.values, strict=True)
    numbers |= {f"score/{results.tasks[column]}": value for column, value in scores if column < MAX_SCORES}
    if (task := results.tasks[count - 1]) in results.gains:
        numbers |= {"transfer/gain": results.gains[task], "transfer/mean_gain": first(results, count).mean_gain}
    routed = routed_results(results.tasks[:count], results.routed_rows[:count])
    if routed is not None:
        numbers |= {f"routed/{name}": value for name, value in routed.after(len(routed.tasks)).items()}
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}
