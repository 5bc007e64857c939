"""How long each task took, by phase."""

from __future__ import annotations

import plotly.graph_objects as go

from continual_petl.report.figures.style import bar, colour, shown, styled, task_axis
from continual_petl.report.run_facts import RunFacts

PHASES = {
    "data": "reading data",
    "train": "training",
    "evaluate": "answering",
    "commit": "committing",
    "measure": "its row of R",
    "verify": "checking earlier tasks",
}


def figure(facts: RunFacts) -> go.Figure:
    """Return one bar a task, divided by phase."""
    tasks, seconds = facts.results.tasks, facts.results.seconds
    others = {phase for spent in seconds.values() for phase in spent} - PHASES.keys()
    phases = PHASES | {phase: shown(phase) for phase in sorted(others)}
    traces = [
        bar(
            x=list(range(1, len(tasks) + 1)),
            y=[seconds.get(task, {}).get(phase, 0.0) for task in tasks],
            name=words,
            marker={"color": colour(number), "line": {"width": 0}},
            customdata=[shown(task) for task in tasks],
            hovertemplate=f"%{{customdata}}<br>{words} %{{y:.3g}} s<extra></extra>",
        )
        for number, (phase, words) in enumerate(phases.items())
    ]
    return styled(traces, xaxis=task_axis(tasks), y="seconds", barmode="stack", bargap=0.1)
