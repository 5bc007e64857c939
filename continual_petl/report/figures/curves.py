"""Learning curves: one task's training loss and validation scores, and the validation scores of all tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from continual_petl.report.figures.registry import run_figure, task_figure
from continual_petl.report.figures.style import Drawing, colour, drawing, line, line_at, mode, shown, spread
from continual_petl.report.run_facts import RunFacts, TaskFacts
from continual_petl.store.certificate.history import Curve

MAX_LINES = 40
"""Maximum number of tasks with a line each; beyond that, the spread of their scores is drawn."""
_TENTHS = 10


def _curve_in_words(task: TaskFacts) -> str:
    kept = None if task.history is None else task.history.kept
    words = "Training loss, and the validation score of every epoch."
    return words if kept is None else f"{words} The bank of step {kept:,} was kept."


@task_figure("curve", section="training", caption="Training", words=_curve_in_words)
def drawn(task: TaskFacts) -> Drawing | None:
    """Return loss and score over the steps of the fit, with a line at the kept bank's step; None without a history."""
    history = task.history
    if history is None:
        return None
    unit = "" if task.certificate.targets is None else ", in squared deviations of the targets"
    return drawn_curve(history.curve, task.link.metric, history.kept, f"training loss{unit}")


def drawn_curve(curve: Curve, metric: str, kept_at: int | None = None, loss: str = "training loss") -> Drawing | None:
    """Return the curve of a fit, finished or not, as plotly JSON; None before its first point.

    Args:
        curve: its losses and scores.
        metric: the score to draw.
        kept_at: the optimizer step of the kept bank, if known.
        loss: the title of the axis of losses.
    """
    losses, scores = curve.losses, [point for point in curve.scores if metric in point.scores]
    if not (losses or scores):
        return None
    traces = [
        line(
            (point.step for point in losses),
            (point.loss for point in losses),
            "training loss",
            1,
            "step %{x}<br>loss %{y:.4f}",
        ),
        line(
            (point.step for point in scores),
            (point.scores[metric] for point in scores),
            f"validation {metric}",
            0,
            "%{text}, step %{x}<br>%{y:.4f}",
            mode=mode(marks=True),
            yaxis="y2",
            text=[f"epoch {point.epoch}" for point in scores],
        ),
    ]
    second = {"title": {"text": f"validation {metric}"}, "overlaying": "y", "side": "right", "showgrid": False}
    kept: dict[str, Any] = {}
    if kept_at is not None:
        at = {"x": kept_at, "xref": "x", "xanchor": "left", "y": 1, "yref": "y domain", "yanchor": "top"}
        kept = {
            "shapes": [line_at("x", kept_at, {"color": colour(2), "dash": "dot"})],
            "annotations": [{"text": "kept", "showarrow": False, **at}],
        }
    margin = {"l": 64, "r": 64, "t": 24, "b": 56}
    return drawing(traces, x="optimizer steps", y=loss, height=320, yaxis2=second, margin=margin, **kept)


def in_words(facts: RunFacts) -> str:
    """Describe the lines of `overview`."""
    count = sum(bool(task.fit) for task in facts.tasks)
    if count <= MAX_LINES:
        return "The validation score over the steps of each task's fit."
    return f"The best, the median and the worst validation score of {count:,} tasks at each tenth of their fits."


def _overview_in_words(facts: RunFacts) -> str:
    return f"{in_words(facts)} Training losses are in the details of each task."


@run_figure("learning", section="learning", caption="How tasks were learned", words=_overview_in_words)
def overview(facts: RunFacts) -> Drawing | None:
    """Return the validation score of every task over its fit, or for many tasks the spread; None without a history."""
    known = [task for task in facts.tasks if task.fit]
    if not known:
        return None
    return _lines(known) if len(known) <= MAX_LINES else _spread([task.fit for task in known])


def _lines(known: Sequence[TaskFacts]) -> Drawing:
    traces = [
        line(
            (step for step, _ in task.fit),
            (score for _, score in task.fit),
            task.name,
            number,
            f"%{{fullData.name}}, step %{{x}}<br>{shown(task.link.metric)} %{{y:.4f}}",
            mode=mode(marks=True),
            marker={"symbol": number % 8},
        )
        for number, task in enumerate(known)
    ]
    return drawing(traces, x="optimizer steps of the task", y="validation score", showlegend=True)


def _spread(fits: Sequence[Sequence[tuple[int, float]]]) -> Drawing:
    """Return the spread at each tenth of the fits, using each task's newest score at that point."""
    tenths = range(1, _TENTHS + 1)
    by_then = [
        [
            max(reached)[1]
            for scores in fits
            if (reached := [point for point in scores if point[0] * _TENTHS <= tenth * scores[-1][0]])
        ]
        for tenth in tenths
    ]
    hover = "%{fullData.name} of %{customdata} tasks at %{x} % of their fit<br>%{y:.4f}"
    percent = [10 * tenth for tenth in tenths]
    traces = spread(percent, by_then, hover, marks=True, customdata=list(map(len, by_then)))
    return drawing(traces, x="share of training, in %", y="validation score")
