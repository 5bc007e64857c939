"""Tasks as text for a terminal: the list of a run's tasks, the details of one, the differences between two runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markup import escape
from rich.segment import Segment
from rich.text import Text

from continual_petl.errors import counted, known_names, printable
from continual_petl.exchange.formats import in_words as formats_in_words
from continual_petl.heads.metric_names import ERROR_NAMES
from continual_petl.kind_registry import kind_of
from continual_petl.report.formatting import ON_VALIDATION, error_lines, errors_in_words, mark_of, megabytes
from continual_petl.report.task_settings import settings_in_words
from continual_petl.report.whole_table import WholeTable
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.certificate.history import Confusion, History
from continual_petl.store.folder.progress import Position

NOTHING_YET = (
    "no task has been learned yet; start or resume the run with continual-petl run. If this folder only holds your stream "
    "file, its run is in another folder: runs/NAME, or the one given as --run-dir"
)
_HEADS = ("task", "kind", "bank", "score", "parameters")
_LAID_OUT = 500
"""Maximum number of list rows that rich lays out."""
_MAX_LABELS = 30
_PARTS = {
    "modifications": "in the adapters",
    "own": "in copies of layer norms and biases",
    "head": "in the head",
}
_MAX_TASKS, _MAX_LINES, _LONGEST = 40, 12, 160


def task_table(tasks: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return one row per task, from the result of `continual_petl.report.inventory.listed`."""
    rows = [_cells(task) for task in tasks]
    return _Rows(rows) if len(rows) > _LAID_OUT else _laid_out(rows)


def _cells(task: Mapping[str, Any]) -> list[str]:
    score = "not defined" if task["score"] is None else f"{task['score']:.4f}"
    marked = f"{score} {task['metric']}" + mark_of(task["split"])
    return [printable(task["task"]), task["kind"], task["short"], marked, f"{task['parameters']:,}"]


def _laid_out(rows: Iterable[Sequence[str]]) -> WholeTable:
    table = WholeTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in _HEADS:
        table.add_column(name, justify="right" if name == _HEADS[-1] else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


class _Rows:
    """The same table for very many rows, as lines of text: laying it out with rich takes longer than reading the tasks.

    If the console is too narrow for it, rich lays it out after all.
    """

    def __init__(self, rows: Sequence[Sequence[str]]) -> None:
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        widths = [max(map(cell_len, column)) for column in zip(_HEADS, *self._rows, strict=True)]
        if sum(widths) + 2 * (len(widths) - 1) > options.max_width:
            yield _laid_out(self._rows)
            return
        for number, row in enumerate((_HEADS, *self._rows)):
            padded = [set_cell_size(cell, width) for cell, width in zip(row[:-1], widths[:-1], strict=True)]
            last = " " * (widths[-1] - cell_len(row[-1])) + row[-1]
            yield Segment("  ".join([*padded, last]), console.get_style("table.header") if number == 0 else None)
            yield Segment.line()


def list_lines(tasks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines below the table."""
    total, kept, routing = (sum(task[key] for task in tasks) for key in ("parameters", "bytes", "routing_bytes"))
    sizes = megabytes(kept) + (f" ({megabytes(routing)} of them for routing)" if routing else "")
    lines = [f"{counted(len(tasks), 'task')}, {total:,} parameters, {sizes} on disk"]
    if any(mark_of(task["split"]) for task in tasks):
        lines.append(ON_VALIDATION)
    return lines + [printable(line) for line in error_lines({t["task"]: t["errors"] for t in tasks if "errors" in t})]


def half_learned_line(tasks: Mapping[str, Position | None]) -> str:
    """Describe tasks that were stopped half-way, from the result of `half_learned`."""
    listed = [task if at is None else f"{task} ({at.in_epochs}, {at.in_steps})" for task, at in tasks.items()]
    return printable(f"half learned: {', '.join(listed)}; the next run of a stream with this task resumes there")


def nothing_yet_line(half: Mapping[str, Position | None]) -> str:
    """Describe a run without learned tasks, from the result of `half_learned`."""
    return half_learned_line(half) if half else NOTHING_YET


def half_replaced_line(tasks: Mapping[str, Position | None]) -> str:
    """Describe learned tasks whose replacement was stopped half-way."""
    listed = ", ".join(tasks)
    return printable(f"unchanged so far: {listed}; the replacement is half learned, and run --replace resumes it")


def task_facts(
    certificate: Certificate,
    history: History,
    num_bytes: int,
    routing_bytes: int,
    seconds: Mapping[str, float],
    exports: Mapping[str, str | None] | None,
) -> RenderableType:
    """Return the details of one task.

    Args:
        certificate: its certificate.
        history: how it was learned.
        num_bytes: size of its folder.
        routing_bytes: size of its routing statistics, which is part of it.
        seconds: seconds by phase.
        exports: for each format, why it cannot be exported in it; None if not recorded.
    """
    table = WholeTable.grid(padding=(0, 2))
    table.add_column()
    table.add_column(overflow="fold")
    labels = certificate.labels or ()
    parts = ", ".join(f"{count:,} {_PARTS[part]}" for part, count in certificate.parameters.items())
    for name, text in {
        "task": certificate.task,
        "kind": certificate.kind + (", pairs of texts" if certificate.pair else ""),
        "labels": f"{len(labels)}: {known_names(labels, limit=_MAX_LABELS)}" if labels else "none",
        "parameters": f"{sum(certificate.parameters.values()):,}: {parts}",
        **settings_in_words(certificate, history),
        **_scores(certificate, history),
        "on disk": f"{num_bytes:,} bytes" + (f", {routing_bytes:,} of them for routing" if routing_bytes else ""),
        **_kept(certificate, seconds),
        "exports": "not recorded" if exports is None else formats_in_words(exports),
    }.items():
        table.add_row(name, Text(printable(text)))
    return table


def _scores(certificate: Certificate, history: History) -> dict[str, str]:
    lines = {} if certificate.is_measured else {"scores": "not measured: imported without rows"}
    for split, scores in certificate.scores.items():
        values = ", ".join(f"{name} {v:.4f}" for name, v in scores.scores.items() if name not in ERROR_NAMES)
        errors = errors_in_words(scores.scores) if kind_of(certificate).has_numbers else ""
        errors += " (in brackets: of always predicting the mean)" if errors else ""
        both = "; ".join(filter(None, (values or "no score is defined", errors)))
        lines[split] = f"{both} on {counted(scores.num_examples, 'row')}"
    if history.curve.losses:
        first, last = history.curve.losses[0], history.curve.losses[-1]
        ends = " to ".join("not finite" if point.loss is None else f"{point.loss:.4f}" for point in (first, last))
        lines["loss"] = f"{ends} in {counted(last.step, 'step')}"
        if certificate.targets is not None:
            lines["loss"] += ", in squared deviations of the targets"
    if history.curve.scores:
        known = [point.scores.get(certificate.metric) for point in history.curve.scores]
        shown = ", ".join("not defined" if value is None else f"{value:.4f}" for value in known[-10:])
        before = "... " if len(known) > 10 else ""
        lines["by epoch"] = f"validation {certificate.metric} {before}{shown}"
    for split, answers in history.answered.items():
        if isinstance(answers, Confusion) and certificate.labels is not None:
            wrong = sorted((cell for cell in answers.cells if cell[0] != cell[1]), key=lambda cell: -cell[2])[:3]
            unit = "word" if kind_of(certificate).per_word else "row"
            text = "; ".join(
                f"{certificate.labels[t]} predicted as {certificate.labels[a]}: {counted(n, unit)}" for t, a, n in wrong
            )
            lines[f"mistakes in {split}"] = text or "none"
    return lines


def _kept(certificate: Certificate, seconds: Mapping[str, float]) -> dict[str, str]:
    lines = {
        "time": ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items()) or "not recorded",
        "certificate": f"entry {certificate.index} of the chain, counted from 0",
        "  bank": certificate.digest,
        "  seal": certificate.seal,
        "  backbone": certificate.backbone,
        **{f"  {split} rows": digest for split, digest in certificate.data.items()},
        "environment": ", ".join(
            f"{k} {v}" for k, v in certificate.environment.model_dump().items() if v not in ("", None)
        ),
    }
    if certificate.training_attention is not None:
        lines["trained with"] = f"{certificate.training_attention} attention"
    return lines | {f"notice {number}": text for number, text in enumerate(certificate.notices, 1)}


def difference_lines(found: Mapping[str, Any], names: tuple[str, str]) -> list[str]:
    """Format the result of `continual_petl.report.differences.differences` as lines."""
    lines = (
        [f"on each line, values of {names[0]} are left of |, those of {names[1]} right of it"]
        if not found["same"]
        else []
    )
    lines += [] if found["backbone"] else ["the backbones differ: " + " | ".join(map(_backbone, found["backbones"]))]
    for name, tasks in zip(names, found["only"], strict=True):
        if tasks:
            lines.append(f"only in {name}: {len(tasks):,}: {known_names(tasks)}")
    if not found["order"]:
        lines.append("the shared tasks were learned in different orders")
    compared = found["tasks"]
    different = [task for task, comparison in compared.items() if not comparison["same"]]
    for task in different[:_MAX_TASKS]:
        lines += _of_task(task, compared[task])
    if len(different) > _MAX_TASKS:
        lines.append(f"and {len(different) - _MAX_TASKS:,} more tasks that differ; --json lists all")
    elsewhere = {name: both for comparison in compared.values() for name, both in comparison["environment"].items()}
    lines += [f"environment: {name} {_shown(both[0])} | {_shown(both[1])}" for name, both in elsewhere.items()]
    same = sum(comparison["bank"] for comparison in compared.values())
    have = "has" if same == 1 else "have"
    lines.append(f"{same:,} of {counted(len(compared), 'shared task')} {have} the same bank, bit for bit")
    if found["same"]:
        lines.append("the runs are the same")
    return [printable(line) for line in lines]


def _of_task(task: str, comparison: Mapping[str, Any]) -> Iterator[str]:
    count, total = comparison["tensors"]
    bank = (
        "the same bank, bit for bit" if comparison["bank"] else f"a different bank ({count} of {total} tensors differ)"
    )
    yield f"{task}: {bank}"
    first, second = comparison["score"]
    metrics = comparison["metric"] if comparison["metric"][0] != comparison["metric"][1] else comparison["metric"][:1]
    yield f"  {' | '.join(metrics)}: {_score(first)}" + ("" if first == second else f" | {_score(second)}")
    details = [f"  {name}: {_shown(both[0])} | {_shown(both[1])}" for name, both in comparison["specification"].items()]
    details += [f"  {split} rows: different" for split in comparison["data"]]
    quiet = [split for split, same in comparison["answers"].items() if not same and not comparison["scores"]]
    details += [f"  predictions for {split} rows differ, but the scores do not" for split in quiet]
    yield from details[:_MAX_LINES]
    if len(details) > _MAX_LINES:
        yield f"  and {len(details) - _MAX_LINES} more; --json lists all"


def _backbone(pinned: Mapping[str, str] | None) -> str:
    return "none yet" if pinned is None else f"{pinned['name']} ({pinned['digest'][:12]})"


def _score(value: float | None) -> str:
    return "not defined" if value is None else _shown(value)


def _shown(value: Any) -> str:
    text = f"{value:.4f}" if isinstance(value, float) and 0.001 <= abs(value) < 1e15 else str(value)
    return "none" if value is None else text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
