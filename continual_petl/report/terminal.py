"""A run as tables in the terminal: the result matrix, forgetting and its evidence, and the cost of each task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.text import Text

from continual_petl.errors import counted, known_names, printable, quoted
from continual_petl.report.formatting import error_lines, megabytes
from continual_petl.report.growth import GrowthRow
from continual_petl.report.task_lines import nothing_yet_line
from continual_petl.report.whole_table import WholeTable
from continual_petl.store.certificate.finding import TaskCheck
from continual_petl.store.folder.progress import Position

if TYPE_CHECKING:
    from continual_petl.report.results import Results

WHOLE_UP_TO = 12
"""Maximum number of tasks that are all shown one by one; in a longer run, only the newest are."""
NEWEST = 8
MAX_PROBLEMS = 50
_MAX_LOW = 8
_ROUTED = {"routing_accuracy": "routing", "accuracy": "routed ACC", "routing_loss": "rout. loss"}
_COLOURS = {"unchanged": "green", "rows not checked": "yellow", "score not checked": "yellow", "CHANGED": "red"}


def _shown(text: str) -> str:
    """Escape a text for a cell, so that it contains no terminal commands or markup."""
    return escape(printable(text))


def result_table(results: Results) -> WholeTable:
    """Return R: one row after each task, one column per task; for many tasks, the newest and a mean of earlier ones."""
    count = len(results.tasks)
    first = 0 if count <= WHOLE_UP_TO else count - NEWEST
    table = WholeTable()
    table.add_column("after")
    if first:
        table.add_column("mean of\nthe others", justify="right")
    for j in range(first, count):
        name, metric = _shown(results.tasks[j]), _shown(results.metrics[j])
        table.add_column(f"{name}{results.mark(j)}\n{metric}", justify="right")
    for i in range(first, count):
        values, status = results.row(i).tolist(), results.row_status(i)
        cells = [_cell(values[j], status[j]) if j <= i else "" for j in range(first, count)]
        if first:
            cells.insert(0, _mean(values[:first]))
        table.add_row(_shown(results.tasks[i]), *cells)
    return table


def _title(results: Results) -> Text:
    """Return the heading of R; it is not the table's title, which would be wrapped at the table's width."""
    title = "Result matrix R: score on each task (column) after learning each task (row)"
    if len(results.tasks) > WHOLE_UP_TO:
        title += f"; the last {NEWEST} of {len(results.tasks):,} tasks (the report shows all)"
    return Text(title, style="italic")


def _mean(values: Sequence[float]) -> str:
    """Return the mean of the known scores, and their number if some are unknown."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "not measured"
    of = "" if len(known) == len(values) else f" ({len(known):,})"
    return f"{sum(known) / len(known):.4f}{of}"


def _cell(value: float, status: str) -> str:
    if math.isnan(value):
        return "not measured" if status == "not measured" else "not defined"
    return f"{value:.4f}" + (" c" if status == "certified" else "")


def summary(results: Results, checks: Sequence[TaskCheck] | None) -> RenderableType:
    """Return ACC, BWT and forgetting, with notes on how they were obtained."""
    lines = [
        f"ACC         {_number(results.acc)}   mean score over all tasks at the end{results.basis}",
        f"BWT         {_number(results.bwt)}   backward transfer (Lopez-Paz and Ranzato 2017)",
        f"forgetting  {_number(results.forgetting)}   mean drop from the best earlier score (Chaudhry et al. 2018)",
    ]
    if len(results.tasks) == 1:
        lines.append("n/a: with a single task, there is no earlier one to forget")
    elif math.isnan(results.forgetting) and any("not measured" in row.status for row in results.rows):
        lines.append(
            "n/a: R has cells that were not measured; `continual-petl reevaluate RUN` fills them from certificates"
        )
    elif math.isnan(results.forgetting):
        lines.append("n/a: forgetting needs every score of the rows before the last one, but some are unknown")
    if any("certified" in row.status for row in results.rows):
        lines.append("c: certified, not measured again: digests and probe are unchanged, so the value is carried over")
    lines += results.footnotes
    if results.gains:
        of = f"{len(results.gains)} of {counted(len(results.tasks), 'task')}"
        lines.append(f"transfer    {_number(results.mean_gain)}   mean gain over a fresh bank after short fits ({of})")
    lines += _routed(results)
    if checks is not None:
        good = [check for check in checks if check.ok]
        ways = sorted({check.how for check in good})
        count = sum(not check.task.startswith("(") for check in checks)  # the other checks are for files of the run
        verdict = f"verified    {len(good)} of {count} tasks unchanged" + (f": {'; '.join(ways)}" if good else "")
        lines.append(verdict)
        if count < len(results.tasks):
            lines.append(
                f"            {count:,} of {len(results.tasks):,} certificates were checked, and the whole chain; "
                "`continual-petl verify` checks the rest"
            )
        lines += problems_in(checks)
    return Text("\n".join(map(printable, lines)))


def _routed(results: Results) -> list[str]:
    """Return the lines about rows without a task name; nothing if fewer than two tasks were routed."""
    from continual_petl.report.routed_results import SCORES  # imports numpy

    routed = results.routed
    if routed is None or len(routed.tasks) < 2:
        return []
    return [
        f"{_ROUTED[name]:<11} {_number(v)}   {SCORES[name]}" for name, v in routed.at_end.items() if name in _ROUTED
    ]


def in_plain_words(results: Results, checks: Sequence[TaskCheck], folder: Path) -> list[str]:
    """Return what the scores of several tasks mean, for readers who do not know the terms; nothing for a single task.

    Args:
        results: the scores.
        checks: the checks of the certificates.
        folder: the run folder.
    """
    if len(results.tasks) < 2 or math.isnan(results.acc):
        return []
    is_accuracy = {*results.metrics} == {"accuracy"}
    acc = f"accuracy {results.acc:.1%}" if is_accuracy else f"score {_number(results.acc).strip()}"
    kept = "nothing was forgotten" if results.forgetting == 0 else f"forgetting {_number(results.forgetting).strip()}"
    if not all(check.ok for check in checks):
        kept = "but not all of them are as they were learned, see above"
    lines = [f"if you name the task of a row: mean {acc} over {len(results.tasks):,} tasks{results.basis}; {kept}"]
    routed = results.routed
    if routed is None or len(routed.tasks) < 2 or "routing_accuracy" not in (at_end := routed.at_end):
        return lines
    right = f"{at_end['accuracy']:.1%} of the rows are predicted correctly, and " if "accuracy" in at_end else ""
    lines.append(
        f"if you do not, the run finds the task: {right}{at_end['routing_accuracy']:.1%} are recognised as rows of their task"
    )
    if low := routed.hardly_told_apart:
        shares = known_names([f"{task} {share:.0%}" for task, share in low.items()], limit=_MAX_LOW)
        lines += [
            f"often taken for another task, with the share of rows recognised: {shares}. If tasks ask different questions "
            "about the same inputs, nothing tells which one you mean. Name the task, or see what each of the most probable "
            "ones predicts:",
            f"  continual-petl predict {quoted(folder)} --candidates 3 TEXT",
        ]
    return lines


def problems_in(checks: Sequence[TaskCheck]) -> list[str]:
    """Return the problems found; if there are many, only the first ones and the number of further ones."""
    problems = [problem for check in checks for problem in check.problems]
    left = len(problems) - MAX_PROBLEMS
    return (
        problems
        if left <= 0
        else [*problems[:MAX_PROBLEMS], f"And {left:,} more: `continual-petl verify` lists them all."]
    )


def _number(value: float) -> str:
    # 0 without decimals means exactly zero, not a score that rounds to 0.0000.
    if value == 0:
        return "     0"
    return "   n/a" if math.isnan(value) else f"{value:6.4f}"


def cost_table(rows: Sequence[GrowthRow], results: Results) -> WholeTable:
    """Return parameters, bytes and time per task."""
    table = WholeTable(title="What each task cost", title_justify="left")
    for header in ("task", "parameters added", "of backbone", "bank", "routing", "on disk", "time"):
        table.add_column(header, justify="left" if header == "task" else "right")
    first = 0 if len(rows) <= WHOLE_UP_TO else len(rows) - NEWEST
    if first:
        before = rows[first - 1]
        parameters, share = f"{before.stored:,}", f"{before.stored / before.full_copies:.2%} of {first:,} copies"
        sizes = _sizes(before.cumulative_bytes, before.cumulative_routing_bytes)
        table.add_row(f"the first {first:,}", parameters, share, *sizes, "")
    for row in rows[first:]:
        seconds = results.seconds.get(row.task)
        spent = f"{sum(seconds.values()):.1f} s" if seconds else ""
        sizes = _sizes(row.num_bytes, row.routing_bytes)
        table.add_row(_shown(row.task), f"{row.trainable:,}", f"{row.share:.2%}", *sizes, spent)
    if rows:
        last = rows[-1]
        table.add_section()
        spent = f"{sum(value for seconds in results.seconds.values() for value in seconds.values()):.1f} s"
        share = f"{last.stored / last.full_copies:.2%} of {counted(len(rows), 'copy', 'copies')}"
        sizes = _sizes(last.cumulative_bytes, last.cumulative_routing_bytes)
        table.add_row("all", f"{last.stored:,}", share, *sizes, spent)
    return table


def _sizes(num_bytes: int, routing_bytes: int) -> tuple[str, str, str]:
    """Return the size of banks with their certificates, that of routing statistics, and the sum; short, for 80 columns."""
    return megabytes(num_bytes - routing_bytes), megabytes(routing_bytes), megabytes(num_bytes)


def print_report(
    console: Console,
    results: Results,
    rows: Sequence[GrowthRow],
    checks: Sequence[TaskCheck] | None = None,
    half: Mapping[str, Position | None] | None = None,
) -> None:
    """Print the report.

    Args:
        console: where.
        results: scores and times.
        rows: what each task added.
        checks: the checks of the certificates, if there were any.
        half: the half-learned tasks, which are listed if no task has been learned yet.
    """
    if not results.tasks:
        problems = problems_in(checks or ())
        for line in problems or [nothing_yet_line(half or {})]:
            console.print(printable(line), markup=False, soft_wrap=True)
        return
    console.print(
        Group(
            _title(results),
            result_table(results),
            summary(results, checks),
            *(Text(printable(line)) for line in error_lines(results.errors)),
            Text(),
            cost_table(rows, results),
        )
    )


def check_table(checks: Sequence[TaskCheck]) -> WholeTable:
    """Return one row per verified task."""
    table = WholeTable(title="Certificates", title_justify="left")
    for header in ("task", "verdict", "checked by", "largest difference", "time"):
        table.add_column(header)
    for check in checks:
        verdict = f"[{_COLOURS[check.verdict]}]{check.verdict}[/]"
        difference = "" if math.isnan(check.largest_difference) else f"{check.largest_difference:g}"
        table.add_row(_shown(check.task), verdict, _shown(check.how), difference, f"{check.seconds * 1000:.0f} ms")
    return table
