"""The sections of the page of one run, top to bottom."""

from __future__ import annotations

import math
import shlex
from itertools import accumulate, islice

from continual_petl.errors import counted
from continual_petl.heads.metric_names import ERROR_NAMES
from continual_petl.metrics.registry import meaning
from continual_petl.report.figures import costs, training
from continual_petl.report.figures.registry import SECTIONS_OF_A_RUN, run_figures
from continual_petl.report.formatting import amount, mark_of, number
from continual_petl.report.page.parts import (
    Section,
    Shown,
    Table,
    TableCell,
    numeric,
    on_disk,
    opening,
    row,
    shown,
)
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
    parts = [verdict(facts), *half_learned(facts)]
    if facts.tasks:
        parts += [*_with_figures(facts), tasks(facts), *wrong_predictions(facts), certificates(facts)]
    return parts


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
        if (figure := training.drawn_curve(curve, metric)) is not None
    ]
    return [Section(id="half", title="Half learned", figures=figures)] if figures else []


def _with_figures(facts: RunFacts) -> list[Section]:
    """Return the sections of the registered figures; there is none about routing if fewer than two tasks were routed."""
    tables = {
        "scores": _errors(facts),
        "forgetting": [_averages(facts), *_metrics(facts)],
        "growth": [_costs(facts)],
    }
    lines = {"learning": _without_history(facts)}
    parts = [
        Section(
            id=name,
            title=name.capitalize(),
            lines=lines.get(name, ()),
            figures=shown((figure for figure in run_figures() if figure.section == name), facts),
            tables=tables.get(name, ()),
        )
        for name in SECTIONS_OF_A_RUN
    ]
    return [part for part in parts if part.figures or part.id != "routing"]


def _errors(facts: RunFacts) -> list[Table]:
    """Return the table of the errors of regression tasks; empty if there are none."""
    rows = [
        row(
            opening(index, task.name + mark_of(task.link.split)),
            *("" if (v := task.link.errors.get(name)) is None else numeric(v, amount(v)) for name in ERROR_NAMES),
        )
        for index, task in enumerate(facts.tasks)
        if task.link.errors
    ]
    caption = "Errors in the units of the targets, and those of always predicting the mean of the rows' targets"
    heads = ("task", *(name.replace("_", " ") for name in ERROR_NAMES))
    return [Table(caption=caption, heads=heads, rows=rows)] if rows else []


def _averages(facts: RunFacts) -> Table:
    rows = [
        row(TableCell(text=facts.results.tasks[step - 1], sort=step), *facts.after(step).values())
        for step in facts.steps
    ]
    return Table(caption="Averages over all tasks so far", heads=("after", "ACC", "BWT", "forgetting"), rows=rows)


def _metrics(facts: RunFacts) -> list[Table]:
    """Return the table of all metrics of R that are known; none if scores are missing, as in a long run."""
    if not facts.results.is_complete:
        return []
    known = {name: value for name, value in facts.results.matrix_metrics.items() if not math.isnan(value)}
    rows = [row(name, value, meaning(name)) for name, value in known.items()]
    return [Table(caption="Metrics of the result matrix", heads=("metric", "value", "what it is"), rows=rows)]


def _costs(facts: RunFacts) -> Table:
    parameters = list(accumulate(task.num_parameters for task in facts.tasks))
    sizes = list(accumulate(task.num_bytes for task in facts.tasks))
    rows = [
        row(
            opening(index, task.name),
            *(task.link.parameters[part] for part in costs.PARTS),
            task.num_parameters,
            parameters[index],
            on_disk(task.num_bytes - task.routing_bytes),
            on_disk(task.routing_bytes),
            on_disk(task.num_bytes),
            on_disk(sizes[index]),
        )
        for index, task in enumerate(facts.tasks)
    ]
    sizes_of = ("bank on disk", "routing statistics", "on disk", "on disk so far")
    heads = ("task", *costs.PARTS.values(), "parameters", "parameters so far", *sizes_of)
    return Table(caption="What each task added", heads=heads, rows=rows)


def _without_history(facts: RunFacts) -> list[str]:
    without = sum(not task.has_history for task in facts.tasks)
    words = f"The training history of {counted(without, 'task')} of {len(facts.tasks):,} is missing or damaged."
    return [words] if without else []


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
        row(
            TableCell(text=f"{wrong_row.row:,}", sort=wrong_row.row),
            *([TableCell(text=wrong_row.id or "", kind="text")] if wrong.has_ids else []),
            *(TableCell(text=text, kind="text") for text in wrong_row.given),
            wrong_row.correct,
            wrong_row.predicted,
            *([numeric(wrong_row.probability, number(wrong_row.probability))] if shares else []),
        )
        for wrong_row in wrong.rows
    ]
    heads = (
        "row",
        *(["id"] if wrong.has_ids else []),
        *wrong.columns,
        "correct",
        "predicted",
        *(["probability"] if shares else []),
    )
    heading = "Largest errors" if wrong.by_error else "Wrong predictions"
    return Table(caption=f"{heading} of {wrong.task}", heads=heads, rows=rows)


def certificates(facts: RunFacts) -> Section:
    """Return the certificates, and how to check them."""
    rows = [
        row(
            opening(index, task.name),
            TableCell(text=task.check.verdict, kind=_MOOD_OF_VERDICT[task.check.verdict]),
            task.link.kind,
            numeric(task.link.score, f"{number(task.link.score)}{mark_of(task.link.split)} {task.link.metric}"),
            task.num_parameters,
            on_disk(task.num_bytes),
            TableCell(text=task.link.digest[:16], kind="digest"),
            TableCell(text=task.link.seal[:16], kind="digest"),
        )
        for index, task in enumerate(facts.tasks)
    ]
    heads = ("task", "verdict", "kind", "score", "parameters", "on disk", "digest of the bank", "seal")
    tables = [Table(caption="Certificates", heads=heads, rows=rows, notes=facts.results.footnotes)]
    more = {"command": f"continual-petl verify {shlex.quote(str(facts.folder))}"}
    return Section(id="certificates", title="Certificates", template="certificates.html.j2", tables=tables, more=more)
