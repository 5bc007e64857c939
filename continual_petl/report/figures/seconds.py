"""How long each task took, by phase."""

from __future__ import annotations

from continual_petl.errors import counted
from continual_petl.report.figures.bars import in_words, task_bars
from continual_petl.report.figures.registry import run_figure
from continual_petl.report.figures.style import Drawing, shown
from continual_petl.report.run_facts import RunFacts

PHASES = {
    "data": "reading data",
    "start": "choosing where to start",
    "train": "training",
    "evaluate": "evaluating",
    "commit": "saving",
    "measure": "scoring earlier tasks",
    "verify": "checking earlier tasks",
}


def _words(facts: RunFacts) -> str:
    spent = facts.results.seconds
    total, train = (
        sum(value for phases in spent.values() for name, value in phases.items() if phase in (None, name))
        for phase in (None, "train")
    )
    words = f"{total:.4g} s in all, of which training took {train:.4g} s."
    if missing := [task for task in facts.results.tasks if task not in spent]:
        words += f" No time is recorded yet for {counted(len(missing), 'task')}."
    if means := in_words(len(facts.results.tasks)):
        words += f"{means} `continual-petl show` prints the times of each task."
    return words


@run_figure("seconds", section="time", caption="Time of each task", words=_words)
def figure(facts: RunFacts) -> Drawing:
    """Return one bar per task, divided by phase."""
    tasks, seconds = facts.results.tasks, facts.results.seconds
    others = {phase for spent in seconds.values() for phase in spent} - PHASES.keys()
    phases = PHASES | {phase: shown(phase) for phase in sorted(others)}
    parts = {
        words: [seconds[task].get(phase, 0.0) if task in seconds else None for task in tasks]
        for phase, words in phases.items()
    }
    return task_bars(tasks, parts, y="seconds", number=" %{y:.3g}", unit="s")
