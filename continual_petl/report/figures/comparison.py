"""Figures that compare several runs: their mean scores after each task, forgetting, and added parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from continual_petl.report.figures.style import (
    MARKED,
    Drawing,
    around_zero,
    colour,
    drawing,
    gaps,
    line,
    mode,
    scatter,
    shown,
    task_axis,
)
from continual_petl.report.run_facts import RunFacts


def over_time(runs: Sequence[tuple[str, RunFacts]], what: str) -> Drawing:
    """Return one line per run.

    Args:
        runs: each with its display name.
        what: ACC, BWT or forgetting; see `RunFacts.after`.
    """
    first = 1 if what == "ACC" else 2
    traces = []
    for number, (name, facts) in enumerate(runs):
        steps = [step for step in facts.steps if step >= first]
        values = (facts.after(step)[what] for step in steps)
        hover = f"%{{fullData.name}} after %{{x}} tasks<br>{what} %{{y:.4f}}"
        marker = {"symbol": number % 8}
        traces.append(line(steps, values, name, number, hover, mode=mode(marks=len(steps) <= MARKED), marker=marker))
    axis = {} if what == "ACC" else around_zero([value for trace in traces for value in trace["y"]])
    return drawing(traces, x="tasks learned", y=what, showlegend=True, yaxis=axis)


def cost(runs: Sequence[tuple[str, RunFacts]]) -> Drawing:
    """Return a plot of each run's final mean score against the number of parameters it added."""
    hover = "%{fullData.name}<br>%{x:,} parameters added<br>ACC %{y:.4f}"
    traces = [
        _marks([facts.growth[-1].stored], [facts.results.acc], name, number, hover, size=14)
        for number, (name, facts) in enumerate(runs)
        if facts.growth
    ]
    axis = {"type": "log"}
    return drawing(traces, x="parameters added in total", y="ACC at the end", showlegend=True, xaxis=axis)


def each_task(runs: Sequence[tuple[str, RunFacts]], tasks: Sequence[str]) -> Drawing:
    """Return the newest known score of every task in each run; a task that a run has not learned is a gap.

    Args:
        runs: each with its display name.
        tasks: in the order in which they are drawn.
    """
    hover, places, names = (
        "%{customdata} in %{fullData.name}<br>%{y:.4f}",
        range(1, len(tasks) + 1),
        [*map(shown, tasks)],
    )
    traces = [
        _marks(places, map(facts.newest.get, tasks), name, number, hover, size=9, customdata=names)
        for number, (name, facts) in enumerate(runs)
    ]
    return drawing(traces, xaxis=task_axis(tasks), y="newest known score", showlegend=True)


def _marks(
    x: Iterable[float], y: Iterable[float | None], name: str, number: int, hover: str, *, size: int, **parts: Any
) -> dict[str, Any]:
    """Return the marks of one run, told apart from those of other runs by colour and shape."""
    marker = {"color": colour(number), "size": size, "symbol": number % 8}
    template = f"{hover}<extra></extra>"
    return scatter(
        x=list(x), y=gaps(y), name=shown(name), mode="markers", marker=marker, hovertemplate=template, **parts
    )
