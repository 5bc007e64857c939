"""The result matrix R as a heat map: a row after each learned task, a column for each task's score."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from continual_petl.errors import counted
from continual_petl.report.figures.registry import run_figure
from continual_petl.report.figures.style import SCALE, Drawing, drawing, gaps, grid, heatmap, shown, tick, titled
from continual_petl.report.formatting import number
from continual_petl.report.results import Results
from continual_petl.report.run_facts import RunFacts

MAX_CELLS = 100
"""Maximum number of rows and columns; for more tasks, blocks are drawn."""


def _words(facts: RunFacts) -> str:
    rows = facts.results.rows
    measured, certified = (sum(row.status.count(how) for row in rows) for how in ("measured", "certified"))
    carried = (
        f", {certified:,} certified: digests and probe are unchanged, so the value is carried over" if certified else ""
    )
    return (
        f"Score on each task (column) after learning each task (row). {counted(measured, 'score')} measured{carried}."
        f"{in_words(facts)}{facts.results.note}"
    )


@run_figure("matrix", section="scores", caption="Result matrix R", words=_words)
def figure(facts: RunFacts) -> Drawing:
    """Return the heat map of R; for more than `MAX_CELLS` tasks the mean of each block, with its worst score on hover."""
    return _blocks(facts.results) if len(facts.results.tasks) > MAX_CELLS else _cells(facts)


def in_words(facts: RunFacts) -> str:
    """Describe the blocks; empty if each score has its own cell."""
    count = len(facts.results.tasks)
    if count <= MAX_CELLS:
        return ""
    size = -(-count // MAX_CELLS)
    return f" Each cell is the mean of up to {size:,} by {size:,} scores; hover over it to see the worst."


def _cells(facts: RunFacts) -> Drawing:
    R_TT = facts.results.scores
    names = [shown(name) for name in facts.results.tasks]
    status, metrics = facts.results.status, facts.results.metrics
    marks = [facts.results.mark(j) for j in range(len(names))]
    words = [
        [
            f"{names[j]} after {names[i]}<br>{number(R_TT[i, j])} {shown(metrics[j])}{marks[j]}, {status[i][j]}"
            if j <= i
            else ""
            for j in range(len(names))
        ]
        for i in range(len(names))
    ]
    rows = list(map(tick, facts.results.tasks))
    columns = [name + mark for name, mark in zip(rows, marks, strict=True)]
    axes: dict[str, Any] = {"x": "score on task", "y": "after learning task", "height": 120 + 36 * len(names)}
    return grid(R_TT, rows, columns, colorbar=titled("score"), text=words, **axes)


def _blocks(results: Results) -> Drawing:
    edges = np.unique(np.linspace(0, len(results.tasks), MAX_CELLS + 1).round().astype(int))
    spans = [slice(int(low), int(high)) for low, high in pairwise(edges)]
    means = np.full((len(spans), len(spans)), np.nan)
    words = [[""] * len(spans) for _ in spans]
    for i, rows in enumerate(spans):
        scored = results.rows[rows]
        task_numbers, values = (
            np.concatenate(parts) for parts in zip(*((r.columns, r.values) for r in scored), strict=True)
        )
        task_numbers, values = task_numbers[~np.isnan(values)], values[~np.isnan(values)]
        # Stable, so within a block the scores keep their order, row by row.
        blocks = np.searchsorted(edges, task_numbers, side="right") - 1
        order = np.argsort(blocks, kind="stable")
        in_blocks = np.split(values[order], np.searchsorted(blocks[order], np.arange(1, len(spans))))
        for j, (columns, known) in enumerate(zip(spans, in_blocks, strict=True)):
            if known.size:
                means[i, j] = known.mean()
                words[i][j] = (
                    f"tasks {columns.start + 1} to {columns.stop} after tasks {rows.start + 1} to {rows.stop}<br>mean "
                    f"{known.mean():.4f}, worst {known.min():.4f}, {known.size} scores known"
                )
    middles = [(span.start + span.stop + 1) / 2 for span in spans]
    parts = {"text": words, "hovertemplate": "%{text}<extra></extra>", "hoverongaps": False, "colorscale": SCALE}
    heat = heatmap([gaps(row) for row in means], x=middles, y=middles, colorbar=titled("mean score"), **parts)
    x, y = "score on tasks, by number", "after learning task number"
    return drawing([heat], x=x, y=y, height=560, yaxis={"autorange": "reversed"})
