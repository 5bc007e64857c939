"""The details of a task, in a separate file, so that the page of a long run opens quickly.

Each task has its own file; in a long run, many tasks share one. A file begins with a digest of its input, and is not
rewritten as long as this digest stays the same.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Sequence

from continual_petl.errors import counted
from continual_petl.heads.metric_names import ERRORS
from continual_petl.report.figures.registry import task_figures
from continual_petl.report.formatting import amount, measure, number
from continual_petl.report.page.parts import Card, Table, inside_script, numeric, row, shown
from continual_petl.report.page.render import templates
from continual_petl.report.run_facts import TaskFacts
from continual_petl.report.task_settings import settings_in_words
from continual_petl.store.certificate.history import Answered, Confusion, PerLabel, Samples

MAX_LABELS = 1_000
_LEFT_OUT = {"tensors", "scores", "labels", "class_weights", "parameters", "notices"}
"""Fields that are shown in tables, or too long to show (every tensor's digest is in bank.json)."""


def script_of(tasks: Sequence[TaskFacts], first: int, page: str, *, packed: bool = False) -> str:
    """Return the script that shows the details of a task, or of any task packed into this file.

    Args:
        tasks: the tasks in this file: one, or as many as are packed together.
        first: 0-based position of the first of them, in the order they were learned.
        page: a version of the drawing code, for the digest.
        packed: whether the details are compressed, which pays off for many tasks, since their details have much in common.
    """
    line = first_line(tasks, first, page)
    all_details = (_details(task.opened(), index) for index, task in enumerate(tasks, first))
    if not packed:
        return f"{line}continualPetlTask({next(all_details)});\n"
    content = ",".join(f"[{details}]" for details in all_details)
    deflated = base64.b64encode(zlib.compress(f"[{content}]".encode())).decode("ascii")
    return f'{line}continualPetlTasks("{deflated}");\n'


def first_line(tasks: Sequence[TaskFacts], first: int, page: str) -> str:
    """Return the first line of a file of tasks, which changes whenever anything shown changes."""
    contents = [[t.link.seal, dict(t.files), t.check.how, t.check.problems, t.has_history] for t in tasks]
    return f"// {hashlib.sha256(json.dumps([page, first, contents]).encode()).hexdigest()}\n"


def _details(task: TaskFacts, index: int) -> str:
    """Return the arguments of the JavaScript call that shows a task: number, HTML and figures."""
    figures = shown(task_figures(), task)
    predictions = task.answered
    html = (
        templates()
        .get_template("task.html.j2")
        .render(
            task=task,
            cards=_cards(task, index),
            section={"figures": figures, "tables": ()},
            samples=predictions.texts if isinstance(predictions, Samples) else (),
            tables=_tables(task),
            specification=json.dumps(_specification(task), indent=2, ensure_ascii=False),
        )
    )
    return f"{index},{inside_script(html)},[{','.join(figure.data for figure in figures)}]"


def _cards(task: TaskFacts, index: int) -> list[Card]:
    certificate, errors = task.certificate, task.link.errors
    note = f"{certificate.metric} on {counted(certificate.num_examples, 'row')} of its {task.link.split} split"
    return [
        Card(
            "score", number(task.link.score), note if certificate.is_measured else "not measured: imported without rows"
        ),
        *(
            Card(name, amount(errors[name]), f"{amount(errors[of])} for always predicting the mean")
            for name, of in ERRORS.items()
            if name in errors and of in errors
        ),
        Card("kind", certificate.kind, "pairs of texts" if certificate.pair else ""),
        Card("bank", f"{task.num_parameters:,}", f"parameters: {task.link.bank}"),
        Card("position", str(index + 1), "in the order tasks were learned"),
        Card("certificate", task.check.verdict, f"by {task.check.how}"),
    ]


def _tables(task: TaskFacts) -> list[Table]:
    certificate = task.certificate
    scores = [
        row(split, name, numeric(value, measure(name, value)), measured.num_examples)
        for split, measured in certificate.scores.items()
        for name, value in measured.scores.items()
    ]
    return [
        _settings(task),
        Table(caption="Scores", heads=("split", "score", "value", "rows"), rows=scores),
        *([_label_table(task, certificate.labels)] if certificate.labels else []),
    ]


def _settings(task: TaskFacts) -> Table:
    """Return what the task was learned with; see `continual_petl.report.task_settings`."""
    settings = settings_in_words(task.certificate, task.history)
    return Table(caption="Settings", heads=("setting", "value"), rows=[row(*both) for both in settings.items()])


def _label_table(task: TaskFacts, labels: Sequence[str]) -> Table:
    """Return the labels, each with its support, predictions and correct predictions, if known."""
    weights, counts = task.certificate.class_weights, _counts(task.answered, len(labels))
    heads = ["label", "number"]
    heads += [] if counts is None else ["support", "predicted", "correct"]
    heads += [] if weights is None else ["weight in the loss"]
    rows = [
        row(
            label,
            index,
            *(() if counts is None else counts[index]),
            *(() if weights is None else [numeric(weights[index], f"{weights[index]:.4g}")]),
        )
        for index, label in enumerate(labels[:MAX_LABELS])
    ]
    more = "" if len(labels) <= MAX_LABELS else f", the first {MAX_LABELS:,} of {len(labels):,}"
    return Table(caption=f"Labels{more}", heads=heads, rows=rows)


def _counts(predictions: Answered | None, num_labels: int) -> list[tuple[int, int, int]] | None:
    """Return (support, predicted, correct) for every label; None if not every prediction was kept."""
    if isinstance(predictions, PerLabel):
        return [(right + missed, right + wrong, right) for right, wrong, missed in predictions.counts]
    if not isinstance(predictions, Confusion) or predictions.others:
        return None
    true, predicted, right = Counter[int](), Counter[int](), Counter[int]()
    for label, prediction, count in predictions.cells:
        true[label] += count
        predicted[prediction] += count
        right[label] += count if label == prediction else 0
    return [(true[label], predicted[label], right[label]) for label in range(num_labels)]


def _specification(task: TaskFacts) -> dict[str, object]:
    certificate = task.certificate
    content = certificate.model_dump(mode="json", exclude=_LEFT_OUT, exclude_none=True)
    return {**content, "num_tensors": len(certificate.tensors), "seal": certificate.seal}
