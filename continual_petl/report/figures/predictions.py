"""Figure of one task's predictions: a confusion matrix, a scatter plot, or counts for each label."""

from __future__ import annotations

from continual_petl.kind_registry import kind_of
from continual_petl.report.figures.registry import task_figure
from continual_petl.report.figures.style import (
    MUTED,
    Drawing,
    bar,
    colour,
    drawing,
    grid,
    named_axis,
    scatter,
    shown,
    tick,
    titled,
)
from continual_petl.report.run_facts import TaskFacts
from continual_petl.store.certificate.history import Confusion, PerLabel, Points

MAX_LABELS = 60
"""Maximum number of labels in a confusion matrix; beyond that, those with the most errors are drawn."""


def words(task: TaskFacts) -> str:
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


@task_figure("answers", section="predictions", caption="Predictions", words=words)
def drawn(task: TaskFacts) -> Drawing | None:
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
    counts = [[0] * len(kept) for _ in kept]
    for true, answered, count in confusion.cells:
        if true in index_of and answered in index_of:
            counts[index_of[true]][index_of[answered]] = count
    names, axis = [shown(labels[number]) for number in kept], [tick(labels[number]) for number in kept]
    hover = [
        [f"{names[i]} predicted as {names[j]}: {count}" for j, count in enumerate(row)] for i, row in enumerate(counts)
    ]
    return grid(
        ([count / max(1, sum(row)) for count in row] for row in counts),
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
