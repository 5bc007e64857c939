"""The sections of the page of one run, top to bottom."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from itertools import accumulate, islice

from continual_petl.errors import counted
from continual_petl.heads.metric_names import ERROR_NAMES
from continual_petl.metrics.registry import meaning
from continual_petl.report.figures import curves, growth
from continual_petl.report.figures.registry import run_figures
from continual_petl.report.formatting import amount, mark_of, megabytes, number
from continual_petl.report.page.parts import Section, Shown, Table, TableCell, shown
from continual_petl.report.page.verdict import half_learned_in_words, verdict
from continual_petl.report.run_facts import RunFacts
from continual_petl.report.wrong_predictions import WrongPredictions

TOGETHER = 50
"""Number of tasks of a long run whose details share a file."""
MAX_CURVES = 20
"""Maximum number of half-learned tasks whose curves are shown; the verdict lists the progress of all of them."""
_MOOD_OF_VERDICT = {"unchanged": "good", "rows not checked": "warn", "score not checked": "warn", "CHANGED": "bad"}


def sections(facts: RunFacts) -> list[Section]:
    """Return all sections; for a run without learned tasks only the verdict and the half-learned tasks."""
    if not facts.tasks:
        return [verdict(facts), *half_learned(facts)]
    parts = [part(facts) for part in (cost, learning, times, tasks)]
    first = [verdict(facts), *half_learned(facts), scores(facts), forgotten(facts), *routed(facts)]
    return [*first, *parts, *wrong_predictions(facts), certificates(facts)]


def half_learned(facts: RunFacts) -> list[Section]:
    """Return the learning curves of half-learned tasks so far; empty if there are none."""
    figures = [
        Shown(
            name=f"half-{index}",
            caption=f"Training of {task} so far",
            words=f"{half_learned_in_words(task, facts.half_learned[task])} Training loss, and the validation score of every "
            "epoch.",
            figure=figure,
        )
        for index, (task, (metric, curve)) in enumerate(islice(facts.so_far.items(), MAX_CURVES))
        if (figure := curves.drawn_curve(curve, metric)) is not None
    ]
    return [Section(id="half", title="Half learned", figures=figures)] if figures else []


def _figures(facts: RunFacts, section: str) -> list[Shown]:
    """Return the registered figures of a section."""
    return shown((figure for figure in run_figures() if figure.section == section), facts)


def scores(facts: RunFacts) -> Section:
    """Return the result matrix, and the scores over time."""
    figures, tables = _figures(facts, "scores"), _errors(facts)
    return Section(id="scores", title="Scores", figures=figures, tables=tables)


def _errors(facts: RunFacts) -> list[Table]:
    """Return the table of the errors of regression tasks; empty if there are none."""
    rows = [
        [
            TableCell(text=task.name + mark_of(task.link.split), sort=index, opens=index),
            *(
                TableCell(text=amount(v), sort=v, kind="number") if v is not None else TableCell(text="")
                for v in errors
            ),
        ]
        for index, task in enumerate(facts.tasks)
        if task.link.errors
        for errors in [[task.link.errors.get(name) for name in ERROR_NAMES]]
    ]
    caption = "Errors in the units of the targets, and those of always predicting the mean of the rows' targets"
    heads = ("task", *(name.replace("_", " ") for name in ERROR_NAMES))
    return [Table(caption=caption, heads=heads, rows=rows)] if rows else []


def forgotten(facts: RunFacts) -> Section:
    """Return forgetting and backward transfer after each task."""
    after = {step: facts.after(step) for step in facts.steps}
    names = ("ACC", "BWT", "forgetting")
    rows = [
        [
            TableCell(text=facts.results.tasks[step - 1], sort=step),
            *(TableCell(text=number(after[step][name]), kind="number") for name in names),
        ]
        for step in facts.steps
    ]
    table = Table(caption="Averages over all tasks so far", heads=("after", *names), rows=rows)
    figures = _figures(facts, "forgetting")
    return Section(id="forgetting", title="Forgetting", figures=figures, tables=[table, *_metrics(facts)])


def _metrics(facts: RunFacts) -> list[Table]:
    """Return the table of all metrics of R that are known; none if scores are missing, as in a long run."""
    if not facts.results.is_complete:
        return []
    rows = [
        [TableCell(text=name), TableCell(text=number(value), sort=value, kind="number"), TableCell(text=meaning(name))]
        for name, value in facts.results.matrix_metrics.items()
        if not math.isnan(value)
    ]
    return [Table(caption="Metrics of the result matrix", heads=("metric", "value", "what it is"), rows=rows)]


def routed(facts: RunFacts) -> list[Section]:
    """Return the section about rows without a task name; nothing if fewer than two tasks were routed."""
    figures = _figures(facts, "routing")
    return [Section(id="routing", title="Routing", figures=figures)] if figures else []


def cost(facts: RunFacts) -> Section:
    """Return the parameters and bytes that each task added."""
    figures = _figures(facts, "growth")
    return Section(id="growth", title="Growth", figures=figures, tables=[_costs(facts)])


def _costs(facts: RunFacts) -> Table:
    counts = [task.link.parameters for task in facts.tasks]
    so_far = zip(accumulate(map(_sum, counts)), accumulate(task.num_bytes for task in facts.tasks), strict=True)
    rows = []
    for index, (task, count, (parameters, size)) in enumerate(zip(facts.tasks, counts, so_far, strict=True)):
        numbers = [*(count[part] for part in growth.PARTS), _sum(count), parameters]
        rows.append(
            [
                TableCell(text=task.name, sort=index, opens=index),
                *(TableCell(text=f"{value:,}", sort=value, kind="number") for value in numbers),
                TableCell(text=megabytes(task.num_bytes), sort=task.num_bytes, kind="number"),
                TableCell(text=megabytes(size), sort=size, kind="number"),
            ]
        )
    heads = ("task", *growth.PARTS.values(), "parameters", "parameters so far", "on disk", "on disk so far")
    return Table(caption="What each task added", heads=heads, rows=rows)


def _sum(counts: Mapping[str, int]) -> int:
    return sum(counts.values())


def learning(facts: RunFacts) -> Section:
    """Return the learning curves of all tasks."""
    without = sum(not task.has_history for task in facts.tasks)
    lines = []
    if without:
        lines.append(
            f"The training history of {counted(without, 'task')} of {len(facts.tasks):,} is missing or damaged."
        )
    figures = _figures(facts, "learning")
    return Section(id="learning", title="Learning", lines=lines, figures=figures)


def times(facts: RunFacts) -> Section:
    """Return the time that each task took."""
    return Section(id="time", title="Time", figures=_figures(facts, "time"))


def tasks(facts: RunFacts) -> Section:
    """Return the section where the details of a task are opened."""
    more = {"names": [t.name for t in facts.tasks], "together": TOGETHER if facts.is_long else 1}
    return Section(id="tasks", title="Tasks", template="tasks.html.j2", more=more)


def wrong_predictions(facts: RunFacts) -> list[Section]:
    """Return the rows that banks get wrong; empty unless requested."""
    if facts.wrong is None:
        return []
    lines = [wrong.in_words for wrong in facts.wrong]
    if len(facts.wrong) < len(facts.tasks):
        lines.insert(0, f"These are rows of the newest {len(facts.wrong):,} of the {len(facts.tasks):,} tasks.")
    tables = [_wrong_table(wrong) for wrong in facts.wrong if wrong.rows]
    return [Section(id="wrong-predictions", title="Wrong predictions", lines=lines, tables=tables)]


def _wrong_table(wrong: WrongPredictions) -> Table:
    shares = any(row.probability is not None for row in wrong.rows)
    rows = [
        [
            TableCell(text=f"{row.row:,}", sort=row.row),
            *(TableCell(text=text, kind="text") for text in row.given),
            TableCell(text=row.correct),
            TableCell(text=row.predicted),
            *([TableCell(text=number(row.probability), sort=row.probability, kind="number")] if shares else []),
        ]
        for row in wrong.rows
    ]
    heads = ("row", *wrong.columns, "correct", "predicted", *(["probability"] if shares else []))
    heading = "Largest errors" if wrong.by_error else "Wrong predictions"
    return Table(caption=f"{heading} of {wrong.task}", heads=heads, rows=rows)


def certificates(facts: RunFacts) -> Section:
    """Return the certificates, and how to check them."""
    rows = []
    for index, task in enumerate(facts.tasks):
        link, verdict = task.link, task.check.verdict
        rows.append(
            [
                TableCell(text=task.name, sort=index, opens=index),
                TableCell(text=verdict, kind=_MOOD_OF_VERDICT[verdict]),
                TableCell(text=link.kind),
                TableCell(
                    text=f"{number(link.score)}{mark_of(link.split)} {link.metric}",
                    sort=link.score,
                    kind="number",
                ),
                TableCell(text=f"{task.num_parameters:,}", sort=task.num_parameters, kind="number"),
                TableCell(text=megabytes(task.num_bytes), sort=task.num_bytes, kind="number"),
                TableCell(text=link.digest[:16], kind="digest"),
                TableCell(text=link.seal[:16], kind="digest"),
            ]
        )
    heads = ("task", "verdict", "kind", "score", "parameters", "on disk", "digest of the bank", "seal")
    table = Table(caption="Certificates", heads=heads, rows=rows, notes=facts.results.footnotes)
    more = {"command": f"continual-petl verify {shlex.quote(str(facts.folder))}"}
    return Section(id="certificates", title="Certificates", template="certificates.html.j2", tables=[table], more=more)
