"""How long each task took, by phase."""

from __future__ import annotations

import plotly.graph_objects as go

from continual_petl.report.figures.bars import task_bars
from continual_petl.report.figures.style import shown
from continual_petl.report.run_facts import RunFacts

PHASES = {
    "data": "reading data",
    "train": "training",
    "evaluate": "evaluating",
    "commit": "saving",
    "measure": "scoring earlier tasks",
    "verify": "checking earlier tasks",
}


def figure(facts: RunFacts) -> go.Figure:
    """Return one bar a task, divided by phase."""
    tasks, seconds = facts.results.tasks, facts.results.seconds
    others = {phase for spent in seconds.values() for phase in spent} - PHASES.keys()
    phases = PHASES | {phase: shown(phase) for phase in sorted(others)}
    parts = {
        words: [seconds[task].get(phase, 0.0) if task in seconds else None for task in tasks]
        for phase, words in phases.items()
    }
    return task_bars(tasks, parts, y="seconds", number=" %{y:.3g}", unit="s")
