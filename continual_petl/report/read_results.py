"""Reads the result matrix of a run from its store."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from continual_petl.report.results import ResultRow, Results
from continual_petl.report.routed_results import Row as RoutedRow
from continual_petl.store.certificate.chain import Link
from continual_petl.store.folder.results_file import Line, Status, TaskLine
from continual_petl.store.store import Store

_RANK: dict[Status, int] = {"not measured": 0, "certified": 1, "measured": 2}


def read_results(store: Store) -> Results:
    """Return the result matrix of a run; lines of tasks that were forgotten or replaced are left out."""
    return results_of(store.links(), store.results())


def results_of(links: Sequence[Link], lines: Iterable[Line]) -> Results:
    """Return the result matrix.

    Args:
        links: one for each learned task, in the order they were learned.
        lines: the results file; lines of tasks that are not among the links are left out. If a cell has several lines, the
            newest counts, but a certified score never replaces a measured one, and an empty one never replaces a score.
    """
    tasks = [link.task for link in links]
    place = {(link.task, link.index): n for n, link in enumerate(links)}
    rows: list[dict[int, tuple[float, Status]]] = [{} for _ in tasks]
    routed: list[RoutedRow] = [{} for _ in tasks]
    seconds: dict[str, dict[str, float]] = {}
    gains: dict[str, float] = {}
    for line in lines:
        if isinstance(line, TaskLine):
            if (line.task, line.index) in place:
                seconds[line.task] = line.seconds
                if line.gain is not None:
                    gains[line.task] = line.gain
            continue
        i = place.get((line.after, line.index))
        for cell in line.cells:
            j = place.get((cell.task, cell.index))
            if i is None or j is None or j > i:
                continue
            before = rows[i].get(j)
            if before is None or _RANK[cell.status] >= _RANK[before[1]]:
                rows[i][j] = (math.nan if cell.value is None else cell.value, cell.status)
        if i is not None and line.routed:
            routed[i] = {cell.task: cell for cell in line.routed if (cell.task, cell.index) in place}
    for i, score in enumerate(link.score for link in links):
        # A bank that was imported without rows has no score, and its row is marked as not measured.
        if i not in rows[i] or (rows[i][i][1] == "not measured" and score is not None):
            # The task is committed, but its row is not written yet: take the score from the certificate.
            rows[i][i] = (math.nan if score is None else score, "measured")
    return Results(
        tasks=tuple(tasks),
        metrics=tuple(link.metric for link in links),
        splits=tuple(link.split for link in links),
        rows=tuple(map(_row, rows)),
        seconds=seconds,
        gains=gains,
        routed_rows=tuple(routed),
    )


def _row(cells: Mapping[int, tuple[float, Status]]) -> ResultRow:
    columns = sorted(cells)
    return ResultRow(
        columns=np.array(columns, dtype=np.int64),
        values=np.array([cells[column][0] for column in columns], dtype=np.float64),
        status=tuple(cells[column][1] for column in columns),
    )
