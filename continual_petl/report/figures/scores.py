"""The scores of every task: R as a heat map, scores over time, what is forgotten, and what earlier banks gave."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from continual_petl.errors import counted
from continual_petl.report.figures.registry import run_figure
from continual_petl.report.figures.style import (
    MARKED,
    MUTED,
    SCALE,
    Drawing,
    around_zero,
    bars_in_words,
    drawing,
    gaps,
    grid,
    heatmap,
    line,
    line_at,
    mode,
    shown,
    spread,
    task_bars,
    tick,
    titled,
)
from continual_petl.report.formatting import number
from continual_petl.report.results import Results
from continual_petl.report.run_facts import RunFacts

MAX_CELLS = 100
"""Maximum number of rows and columns; for more tasks, blocks are drawn."""


def _matrix_words(facts: RunFacts) -> str:
    rows = facts.results.rows
    measured, certified = (sum(row.status.count(how) for row in rows) for how in ("measured", "certified"))
    carried = (
        f", {certified:,} certified: digests and probe are unchanged, so the value is carried over" if certified else ""
    )
    return (
        f"Score on each task (column) after learning each task (row). {counted(measured, 'score')} measured{carried}."
        f"{_blocks_in_words(facts)}{facts.results.note}"
    )


@run_figure("matrix", section="scores", caption="Result matrix R", words=_matrix_words)
def matrix(facts: RunFacts) -> Drawing:
    """Return the heat map of R; for more than `MAX_CELLS` tasks the mean of each block, with its worst score on hover."""
    return _blocks(facts.results) if len(facts.results.tasks) > MAX_CELLS else _cells(facts)


def _blocks_in_words(facts: RunFacts) -> str:
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


MAX_LINES = 40
"""Maximum number of tasks with a line each; beyond that, the spread of the changes is drawn."""
MARKS = {"unchanged": " \u2261", "CHANGED": " \u2260", "rows not checked": "", "score not checked": ""}
"""Mark after a task's name: whether its bank is bit for bit the certified one."""
_SYMBOLS = {"measured": "circle", "certified": "diamond-open"}


def flatness(facts: RunFacts) -> str:
    """Describe whether the newest known scores of earlier tasks equal their first ones."""
    changes, earlier = facts.changes, max(0, len(facts.tasks) - 1)
    unknown = earlier - len(changes)
    if not changes:
        return "No earlier task has been measured or certified again yet."
    left = f" {counted(unknown, 'earlier task')} {'has' if unknown == 1 else 'have'} no later score." if unknown else ""
    certified = facts.results.later_certified
    if certified:
        verb = "was" if certified == 1 else "were"
        left = f" {counted(certified, 'earlier score')} {verb} certified instead of measured again.{left}"
    moved = [change for change in changes.values() if change != 0]
    if not moved:
        return f"{_identical(len(changes) - certified)}{left}".strip()
    span = f"by {min(moved):+.4f} to {max(moved):+.4f}" if len(moved) > 1 else f"by {moved[0]:+.4f}"
    return f"{len(moved):,} of {counted(len(changes), 'later score')} changed, {span}.{left}"


def _identical(count: int) -> str:
    """Describe how many re-measured scores are unchanged; empty for none."""
    few = (
        "",
        "The one score that was measured again is identical.",
        "Both scores that were measured again are identical.",
    )
    return few[count] if count < len(few) else f"All {count:,} scores that were measured again are identical."


def _over_time_words(facts: RunFacts) -> str:
    same = f"{facts.num_unchanged:,} of {counted(len(facts.tasks), 'bank')}"
    return (
        f"{flatness(facts)} {same} are identical to the certified ones, bit for bit (\u2261). {_lines_in_words(facts)}"
        f"{facts.results.note}"
    )


@run_figure("scores", section="scores", caption="Every task's score over time", words=_over_time_words)
def over_time(facts: RunFacts) -> Drawing:
    """Return one line per task, or for many tasks the spread of the changes from their first scores.

    A filled mark is a measured score. An open one is a certified score: digests and probe are unchanged, bit for bit, so the
    value still holds. A cross is a changed score. A mark after a task's name shows the current state of its certificate;
    see `MARKS`.
    """
    return _score_lines(facts) if len(facts.results.tasks) <= MAX_LINES else _spread_of_changes(facts)


def _lines_in_words(facts: RunFacts) -> str:
    """Describe lines and marks."""
    if len(facts.results.tasks) <= MAX_LINES:
        return "Filled marks were measured, open ones certified; a cross is a score that changed."
    drawn = "The best, the median and the worst change among the tasks whose score is known at that time."
    return f"{drawn}{facts.spaced}"


def _score_lines(facts: RunFacts) -> Drawing:
    R_TT, traces = facts.results.scores, []
    marks = {task.name: MARKS[task.check.verdict] for task in facts.tasks}
    for j, name in enumerate(facts.results.tasks):
        known = [i for i in range(j, len(R_TT)) if not np.isnan(R_TT[i, j])]
        status = [facts.results.status[i][j] for i in known]
        moved = [R_TT[i, j] != R_TT[known[0], j] for i in known]
        symbols = ["x" if changed else _SYMBOLS[how] for how, changed in zip(status, moved, strict=True)]
        traces.append(
            line(
                (i + 1 for i in known),
                R_TT[known, j],
                name + facts.results.mark(j) + marks[name],
                j,
                f"{shown(name)} after %{{x}} tasks<br>%{{y:.4f}} {shown(facts.results.metrics[j])}, %{{text}}",
                mode=mode(marks=True),
                marker={"symbol": symbols, "size": 9},
                text=[how + (", changed" if changed else "") for how, changed in zip(status, moved, strict=True)],
            )
        )
    ticks = {"dtick": 1} if len(R_TT) <= 20 else {}
    return drawing(traces, x="tasks learned", y="score", showlegend=True, xaxis=ticks)


def _spread_of_changes(facts: RunFacts) -> Drawing:
    steps = [step for step in facts.steps if step > 1]
    changes = [_changes(facts.results, step) for step in steps]
    traces = spread(steps, changes, "after %{x} tasks<br>%{fullData.name} change %{y:.6f}")
    zero = line_at("y", 0, {"color": MUTED, "width": 1})
    axis = around_zero([value for trace in traces for value in trace["y"]])
    return drawing(traces, x="tasks learned", y="change since the task was learned", yaxis=axis, shapes=[zero])


def _changes(results: Results, step: int) -> list[float]:
    """Return the change of each task's score since it was learned, except for the newest task; unknown ones are left out."""
    changes = results.row(step - 1)[:-1] - results.own[: step - 1]
    known: list[float] = changes[~np.isnan(changes)].tolist()
    return known


def _transfer_words(facts: RunFacts) -> str:
    results = facts.results
    helped = sum(gain > 0 for gain in results.gains.values())
    return (
        "Validation score of the chosen starting point, minus that of a fresh bank after the same number of steps. An "
        f"earlier bank, or an average of several, was better for {helped} of {counted(len(results.gains), 'task')}; the mean "
        f"gain is {number(results.mean_gain)}. The gain shows how a task begins, not how it ends: more training narrows "
        "the gap." + bars_in_words(len(results.tasks))
    )


@run_figure("transfer", section="scores", caption="Gain from earlier banks", words=_transfer_words)
def transfer(facts: RunFacts) -> Drawing | None:
    """Return the gain of each task; None if no task tried several starting points."""
    results = facts.results
    if not results.gains:
        return None
    gains = [results.gains.get(task) for task in results.tasks]
    return task_bars(results.tasks, {"gain over a fresh bank": gains}, y="score", number=" %{y:+.4f}", unit="")


SHOWN = ("forgetting", "BWT")


def _forgetting_words(facts: RunFacts) -> str:
    ends = {"forgetting": facts.results.forgetting, "BWT": facts.results.bwt}
    known = [f"{name} is {number(value)}" for name, value in ends.items() if not math.isnan(value)]
    if known:
        return f"At the end, {' and '.join(known)}.{facts.spaced}"
    why = "there is no earlier task yet" if len(facts.tasks) == 1 else "some scores were not measured"
    return f"Forgetting and BWT cannot be computed: {why}.{facts.spaced}"


@run_figure(
    "forgetting",
    section="forgetting",
    caption="Forgetting and backward transfer after each task",
    words=_forgetting_words,
)
def forgetting(facts: RunFacts) -> Drawing:
    """Return forgetting (Chaudhry et al. 2018) and BWT (Lopez-Paz and Ranzato 2017) after every task but the first."""
    steps = [step for step in facts.steps if step > 1]
    values = [facts.after(step) for step in steps]
    traces = [
        line(
            steps,
            (value[name] for value in values),
            name,
            index,
            f"after %{{x}} tasks<br>{name} %{{y:.6f}}",
            mode=mode(marks=len(steps) <= MARKED),
            style={"dash": ("solid", "dash")[index]},
            marker={"symbol": ("circle", "x")[index]},
        )
        for index, name in enumerate(SHOWN)
    ]
    axis = around_zero([value for trace in traces for value in trace["y"]])
    return drawing(traces, x="tasks learned", y="difference in score", yaxis=axis)
