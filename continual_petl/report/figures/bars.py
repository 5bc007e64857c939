"""Stacked bars, one for each task; in a long run each bar is the mean of several consecutive tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from continual_petl.report.figures.style import Drawing, bar, colour, drawing, shown, task_axis
from continual_petl.report.run_facts import MAX_TASKS

MAX_BARS = 250
"""Maximum number of bars in a run of more than `MAX_TASKS` tasks."""


def tasks_of_a_bar(count: int) -> int:
    """Return how many tasks share a bar."""
    return 1 if count <= MAX_TASKS else -(-count // MAX_BARS)


def in_words(count: int) -> str:
    """Describe the bars; empty if each task has its own bar."""
    size = tasks_of_a_bar(count)
    return "" if size == 1 else f" Each bar is the mean of {size:,} of the {count:,} tasks, in learning order."


def task_bars(
    tasks: Sequence[str], parts: Mapping[str, Sequence[float | None]], *, y: str, number: str, unit: str
) -> Drawing:
    """Return a bar for each task, or for every few tasks, divided into parts.

    Args:
        tasks: their names, in the order they were learned.
        parts: by name, the size of a part for each task; None if it is unknown: it is then left out of a bar's mean.
        y: title of the vertical axis.
        number: plotly's number format, with a prefix.
        unit: suffix of the numbers.
    """
    size = tasks_of_a_bar(len(tasks))
    starts = range(0, len(tasks), size)
    ends = [min(start + size, len(tasks)) for start in starts]
    names = [f"mean of tasks {start + 1:,} to {end:,}" for start, end in zip(starts, ends, strict=True)]
    traces = [
        bar(
            x=[start + (size + 1) / 2 if size > 1 else start + 1 for start in starts],
            y=[_mean(values[start:end]) for start, end in zip(starts, ends, strict=True)],
            name=words,
            marker={"color": colour(index), "line": {"width": 0}},
            customdata=names if size > 1 else list(map(shown, tasks)),
            hovertemplate=f"%{{customdata}}<br>{words}{number} {unit}<extra></extra>",
        )
        for index, (words, values) in enumerate(parts.items())
    ]
    axis = {"title": {"text": f"task, by number; {size:,} tasks per bar"}} if size > 1 else task_axis(tasks)
    return drawing(traces, xaxis=axis, y=y, barmode="stack", bargap=0.1)


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return known[0] if len(known) == 1 else sum(known) / max(1, len(known))
