"""Tables in the terminal stay readable, however many tasks there are."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import torch
from rich.console import Console

from continual_petl.report.growth import GrowthRow
from continual_petl.report.results import Results
from continual_petl.report.terminal import MAX_PROBLEMS, print_report
from continual_petl.store.certificate.finding import Finding, TaskCheck
from continual_petl.store.ledger.lines import Status
from tests.report.made import rows_of


def shown(
    num_tasks: int,
    *,
    last: Status = "measured",
    metric: str = "accuracy",
    split: str = "test",
    checks: Sequence[TaskCheck] | None = None,
) -> str:
    """Return the printed report of a run whose last row may lack the score of the first task."""
    names = tuple(f"t{number}" for number in range(num_tasks))
    R = torch.full((num_tasks, num_tasks), math.nan, dtype=torch.float64).tril()
    R[torch.triu_indices(num_tasks, num_tasks, 1).unbind()] = math.nan
    R[-1] = 0.5
    if last == "not measured" or num_tasks > 12:
        R[-1, 0] = math.nan
    R.diagonal().fill_(0.75)
    rows = [
        GrowthRow(
            task=name, trainable=10, share=0.1, stored=10 * n, active=100, num_bytes=7, cumulative_bytes=7 * n,
            full_copies=100 * n,
        )
        for n, name in enumerate(names, 1)
    ]  # fmt: skip
    measured: Status = "measured"
    status = (*(tuple(measured for _ in names) for _ in names[1:]), tuple(last for _ in names))
    results = Results(
        tasks=names,
        metrics=(*["accuracy"] * (num_tasks - 1), metric),
        splits=("test",) * (num_tasks - 1) + (split,),
        rows=rows_of(R, status),
        seconds={name: {"train": 1.0} for name in names},
    )
    buffer = io.StringIO()
    print_report(Console(file=buffer, width=140), results, rows, checks)
    return buffer.getvalue()


def test_a_score_on_validation_rows_is_marked_and_explained_below() -> None:
    text = shown(2, split="validation")
    assert "t1*" in text
    assert "t0*" not in text
    assert "\n* on validation rows: the task has no test rows\n" in text
    assert "*" not in shown(2)


def test_only_the_newest_of_a_thousand_tasks_are_shown() -> None:
    text = shown(1000)
    assert len(text.splitlines()) < 50
    assert max(map(len, text.splitlines())) <= 140
    assert "the last 8 of 1,000 tasks (the report shows all)" in text
    assert "0.5000 (991)" in text, "the mean must be over 991 of the 992 other tasks, since one score is unknown"
    assert " t999 " in text
    assert " t991 " not in text
    assert "the first 992" in text
    assert "9,920" in text
    assert "10.00% of 1,000 copies" in text
    assert "1000.0 s" in text


def test_one_task_is_compared_with_one_copy() -> None:
    assert "10.00% of 1 copy " in shown(1)


def test_all_of_a_dozen_tasks_are_shown() -> None:
    text = shown(12)
    assert all(f" t{number} " in text for number in range(12))
    assert "mean of" not in text
    assert "n/a: forgetting needs every score of the rows before the last one, but some are unknown" in text


def test_missing_number_has_a_reason() -> None:
    assert "n/a: with a single task, there is no earlier one to forget" in shown(1)
    assert "n/a: R has cells that were not measured; `continual-petl reevaluate RUN` fills them from certificates" in (
        shown(12, last="not measured")
    )


def test_mean_over_different_metrics_is_marked() -> None:
    assert "it mixes metrics" not in shown(2)
    assert "mean score over all tasks at the end; it mixes metrics: accuracy, spearman\n" in shown(2, metric="spearman")


def test_the_title_of_a_narrow_table_is_one_line() -> None:
    assert "Result matrix R: score on each task (column) after learning each task (row)\n" in shown(1)


def test_only_the_first_problems_are_printed() -> None:
    checks = [
        TaskCheck(
            task=f"t{n}",
            findings=(Finding(message=f"task t{n} is damaged"),),
            how="",
            largest_difference=math.nan,
            seconds=0.0,
        )
        for n in range(MAX_PROBLEMS + 7)
    ]
    text = shown(len(checks), checks=checks)
    assert text.count("is damaged") == MAX_PROBLEMS
    assert "And 7 more: `continual-petl verify` lists them all." in text
