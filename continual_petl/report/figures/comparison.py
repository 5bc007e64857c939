"""Figures that compare several runs: their mean scores after each task, forgetting, and added parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

from continual_petl.report.figures.style import Drawing, around_zero, colour, drawing, scatter, shown, task_axis
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
        values = [facts.after(step)[what] for step in steps]
        traces.append(
            scatter(
                x=steps,
                y=[None if math.isnan(value) else value for value in values],
                name=shown(name),
                mode="lines+markers" if len(steps) <= 60 else "lines",
                line={"color": colour(number)},
                marker={"symbol": number % 8},
                hovertemplate=f"%{{fullData.name}} after %{{x}} tasks<br>{what} %{{y:.4f}}<extra></extra>",
            )
        )
    axis = {} if what == "ACC" else around_zero([value for trace in traces for value in trace["y"]])
    return drawing(traces, x="tasks learned", y=what, showlegend=True, yaxis=axis)


def cost(runs: Sequence[tuple[str, RunFacts]]) -> Drawing:
    """Return a plot of each run's final mean score against the number of parameters it added."""
    known = [(number, *run) for number, run in enumerate(runs) if run[1].growth]
    traces = [
        scatter(
            x=[facts.growth[-1].stored],
            y=[None if math.isnan(facts.results.acc) else facts.results.acc],
            name=shown(name),
            mode="markers",
            marker={"color": colour(number), "size": 14, "symbol": number % 8},
            hovertemplate="%{fullData.name}<br>%{x:,} parameters added<br>ACC %{y:.4f}<extra></extra>",
        )
        for number, name, facts in known
    ]
    axis = {"type": "log"}
    return drawing(traces, x="parameters added in total", y="ACC at the end", showlegend=True, xaxis=axis)


def each_task(runs: Sequence[tuple[str, RunFacts]], tasks: Sequence[str]) -> Drawing:
    """Return the newest known score of every task in each run; a task that a run has not learned is a gap.

    Args:
        runs: each with its display name.
        tasks: in the order in which they are drawn.
    """
    traces = []
    for number, (name, facts) in enumerate(runs):
        ends = facts.newest
        values = [ends.get(task, math.nan) for task in tasks]
        traces.append(
            scatter(
                x=list(range(1, len(tasks) + 1)),
                y=[None if math.isnan(value) else value for value in values],
                name=shown(name),
                mode="markers",
                marker={"color": colour(number), "symbol": number % 8, "size": 9},
                customdata=[shown(task) for task in tasks],
                hovertemplate="%{customdata} in %{fullData.name}<br>%{y:.4f}<extra></extra>",
            )
        )
    return drawing(traces, xaxis=task_axis(tasks), y="newest known score", showlegend=True)
