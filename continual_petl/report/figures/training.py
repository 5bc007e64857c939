"""How tasks were learned: curves of losses and scores, and the predictions of a task just after it was learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from continual_petl.kind_registry import kind_of
from continual_petl.report.figures.registry import run_figure, task_figure
from continual_petl.report.figures.style import (
    MUTED,
    Drawing,
    bar,
    colour,
    drawing,
    grid,
    line,
    line_at,
    mode,
    named_axis,
    scatter,
    shown,
    spread,
    tick,
    titled,
)
from continual_petl.report.run_facts import RunFacts, TaskFacts
from continual_petl.store.certificate.history import Confusion, Curve, PerLabel, Points

MAX_LINES = 40
"""Maximum number of tasks with a line each; beyond that, the spread of their scores is drawn."""
_TENTHS = 10


def _curve_in_words(task: TaskFacts) -> str:
    kept = None if task.history is None else task.history.kept
    words = "Training loss, and the validation score of every epoch."
    return words if kept is None else f"{words} The bank of step {kept:,} was kept."


@task_figure("curve", section="training", caption="Training", words=_curve_in_words)
def curve(task: TaskFacts) -> Drawing | None:
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


def _learning_in_words(facts: RunFacts) -> str:
    """Describe the lines of `learning`."""
    count = sum(bool(task.fit) for task in facts.tasks)
    if count <= MAX_LINES:
        return "The validation score over the steps of each task's fit."
    return f"The best, the median and the worst validation score of {count:,} tasks at each tenth of their fits."


def _learning_words(facts: RunFacts) -> str:
    return f"{_learning_in_words(facts)} Training losses are in the details of each task."


@run_figure("learning", section="learning", caption="How tasks were learned", words=_learning_words)
def learning(facts: RunFacts) -> Drawing | None:
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


MAX_LABELS = 60
"""Maximum number of labels in a confusion matrix; beyond that, those with the most errors are drawn."""


def predictions_words(task: TaskFacts) -> str:
    """Describe the figure in words."""
    predictions = task.answered
    caption = f"Predictions on the {task.link.split} split, just after the task was learned"
    if isinstance(predictions, Confusion):
        total = sum(count for *_, count in predictions.cells) + predictions.others
        right = sum(count for true, answered, count in predictions.cells if true == answered)
        unit = "words" if kind_of(task.link).per_word else "rows"
        caption += (
            f": a row for each true label, a column for each predicted one. {right:,} of {total:,} {unit} are correct"
        )
        if predictions.others:
            caption += f"; {predictions.others:,} {unit} in the least frequent cells are counted but not shown"
        if len(task.certificate.labels or ()) > MAX_LABELS:
            caption += f". The {MAX_LABELS} labels with the most errors are shown"
    elif isinstance(predictions, Points):
        caption += (
            f": {len(predictions.pairs):,} of its rows, evenly spaced; a prediction on the dashed line is exactly "
            "correct"
        )
    elif isinstance(predictions, PerLabel):
        right, wrong, missed = (sum(counts) for counts in zip(*predictions.counts, strict=True))
        caption += f": {right:,} labels correct, {wrong:,} wrong, {missed:,} missed"
        if len(task.certificate.labels or ()) > MAX_LABELS:
            caption += f". The {MAX_LABELS} most frequent labels are shown"
    return caption + "."


@task_figure("answers", section="predictions", caption="Predictions", words=predictions_words)
def predictions(task: TaskFacts) -> Drawing | None:
    """Return the predictions on the reported split; None without a history, and for generated texts."""
    predictions = task.answered
    labels = task.certificate.labels or ()
    if isinstance(predictions, Confusion):
        return _confusion(predictions, labels)
    if isinstance(predictions, Points):
        return _points(predictions)
    if isinstance(predictions, PerLabel):
        return _per_label(predictions, labels)
    return None


def _confusion(confusion: Confusion, labels: tuple[str, ...]) -> Drawing:
    kept = _worst(confusion, len(labels))
    index_of = {label: number for number, label in enumerate(kept)}
    counts, totals = [[0] * len(kept) for _ in kept], [0] * len(kept)
    for true, answered, count in confusion.cells:
        if true in index_of:
            totals[index_of[true]] += count  # also those predicted as a label that is not drawn
            if answered in index_of:
                counts[index_of[true]][index_of[answered]] = count
    names, axis = [shown(labels[number]) for number in kept], [tick(labels[number]) for number in kept]
    hover = [
        [f"{names[i]} predicted as {names[j]}: {count}" for j, count in enumerate(row)] for i, row in enumerate(counts)
    ]
    return grid(
        ([count / max(1, total) for count in row] for row, total in zip(counts, totals, strict=True)),
        axis,
        axis,
        colorbar={**titled("share of row"), "tickformat": ".0%"},
        text=counts,
        written="%{text}",
        hover="%{customdata} (%{z:.1%} of the row)",
        parts={"customdata": hover, "zmin": 0, "zmax": 1},
        x="predicted label",
        y="true label",
        height=140 + 32 * len(kept),
    )


def _worst(confusion: Confusion, num_labels: int) -> list[int]:
    """Return the labels to draw, in order: all, or those with the most errors."""
    if num_labels <= MAX_LABELS:
        return list(range(num_labels))
    errors = [0] * num_labels
    for true, answered, count in confusion.cells:
        if true != answered:
            errors[true] += count
            errors[answered] += count
    return sorted(sorted(range(num_labels), key=lambda label: -errors[label])[:MAX_LABELS])


def _points(points: Points) -> Drawing:
    values = [value for pair in points.pairs for value in pair if value is not None]
    span = [min(values, default=0.0), max(values, default=1.0)]
    right = scatter(
        x=span, y=span, mode="lines", name="exactly correct", line={"color": MUTED, "dash": "dash"}, hoverinfo="skip"
    )
    rows = scatter(
        x=[true for true, _ in points.pairs],
        y=[answered for _, answered in points.pairs],
        mode="markers",
        name="rows",
        marker={"color": colour(0), "opacity": 0.6},
        customdata=[
            [f"{true:.15g}", "" if answered is None else f"{answered:.15g}"] for true, answered in points.pairs
        ],
        hovertemplate="true %{customdata[0]}<br>predicted %{customdata[1]}<extra></extra>",
    )
    return drawing([right, rows], x="true value", y="predicted value")


def _per_label(per_label: PerLabel, labels: tuple[str, ...]) -> Drawing:
    parts = ("correct", "wrong", "missed")
    kept = sorted(range(len(labels)), key=lambda label: -sum(per_label.counts[label]))[:MAX_LABELS]
    names = [shown(labels[label]) for label in kept]
    traces = [
        bar(
            x=list(range(len(kept))),
            y=[per_label.counts[label][part] for label in kept],
            name=outcome,
            marker={"color": colour((2, 1, 4)[part])},
            customdata=names,
            hovertemplate=f"%{{customdata}}<br>{outcome}: %{{y}} rows<extra></extra>",
        )
        for part, outcome in enumerate(parts)
    ]
    axis = named_axis([tick(labels[label]) for label in kept])
    return drawing(traces, x="label", y="rows", barmode="stack", xaxis=axis)
