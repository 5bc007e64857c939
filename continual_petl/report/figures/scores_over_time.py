"""Every task's score after each later task: flat lines if nothing is forgotten."""

from __future__ import annotations

import numpy as np

from continual_petl.errors import counted
from continual_petl.report.figures.registry import run_figure
from continual_petl.report.figures.style import MUTED, Drawing, around_zero, drawing, line, line_at, mode, shown, spread
from continual_petl.report.results import Results
from continual_petl.report.run_facts import RunFacts

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


def _words(facts: RunFacts) -> str:
    same = f"{facts.num_unchanged:,} of {counted(len(facts.tasks), 'bank')}"
    return (
        f"{flatness(facts)} {same} are identical to the certified ones, bit for bit (\u2261). {in_words(facts)}"
        f"{facts.results.note}"
    )


@run_figure("scores", section="scores", caption="Every task's score over time", words=_words)
def figure(facts: RunFacts) -> Drawing:
    """Return one line per task, or for many tasks the spread of the changes from their first scores.

    A filled mark is a measured score. An open one is a certified score: digests and probe are unchanged, bit for bit, so the
    value still holds. A cross is a changed score. A mark after a task's name shows the current state of its certificate;
    see `MARKS`.
    """
    return _lines(facts) if len(facts.results.tasks) <= MAX_LINES else _spread(facts)


def in_words(facts: RunFacts) -> str:
    """Describe lines and marks."""
    if len(facts.results.tasks) <= MAX_LINES:
        return "Filled marks were measured, open ones certified; a cross is a score that changed."
    drawn = "The best, the median and the worst change among the tasks whose score is known at that time."
    return f"{drawn}{facts.spaced}"


def _lines(facts: RunFacts) -> Drawing:
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


def _spread(facts: RunFacts) -> Drawing:
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
