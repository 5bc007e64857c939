"""Tables in the terminal stay readable, however many tasks there are."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from continual_petl.report.growth import GrowthRow
from continual_petl.report.results import Results
from continual_petl.report.terminal import MAX_PROBLEMS, in_plain_words, print_report
from continual_petl.store.certificate.finding import Finding, TaskCheck
from continual_petl.store.ledger.lines import RoutedCell, Status
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
            full_copies=100 * n, routing_bytes=3, cumulative_routing_bytes=3 * n,
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


def damaged(task: str) -> TaskCheck:
    finding = Finding(message=f"task {task} is damaged")
    return TaskCheck(task=task, findings=(finding,), how="", largest_difference=math.nan, seconds=0.0)


def test_only_the_first_problems_are_printed() -> None:
    checks = [damaged(f"t{n}") for n in range(MAX_PROBLEMS + 7)]
    text = shown(len(checks), checks=checks)
    assert text.count("is damaged") == MAX_PROBLEMS
    assert "And 7 more: `continual-petl verify` lists them all." in text


def test_bytes_of_routing_are_shown_apart_from_those_of_banks_with_the_sum() -> None:
    (header,) = (line for line in shown(15).splitlines() if "parameters added" in line)
    heads = [cell.strip() for cell in header.strip("┃").split("┃")]
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in shown(15).splitlines() if "bytes" in line]
    sizes = {
        row[0]: [dict(zip(heads, row, strict=True))[name] for name in ("bank", "routing", "on disk")] for row in rows
    }
    assert sizes["t14"] == ["4 bytes", "3 bytes", "7 bytes"]
    assert sizes["the first 7"] == ["28 bytes", "21 bytes", "49 bytes"]
    assert sizes["all"] == ["60 bytes", "45 bytes", "105 bytes"]


def results_with(chosen: Mapping[str, Mapping[str, int]], R: Sequence[Sequence[float]], **more: Any) -> Results:
    """Return results of tasks whose rows were routed at the end as given; of each task, half are predicted correctly."""
    cells = {
        task: RoutedCell(
            task=task,
            index=index,
            split="test",
            num_examples=sum(counts.values()),
            chosen=dict(counts),
            unknown=0,
            correct=sum(counts.values()) // 2,
            correct_own=0,
            correct_known=0,
        )
        for index, (task, counts) in enumerate(chosen.items())
    }
    tasks = tuple(chosen)
    return Results(
        tasks=tasks,
        metrics=more.get("metrics", ("accuracy",) * len(tasks)),
        splits=("test",) * len(tasks),
        rows=rows_of(torch.tensor(R, dtype=torch.float64)),
        seconds={},
        routed_rows=tuple({task: cells[task] for task in tasks[: i + 1]} for i in range(len(tasks))),
    )


TWO = [[0.75, math.nan], [0.75, 0.5]]


def test_the_last_lines_say_what_the_scores_mean(tmp_path: Path) -> None:
    told = in_plain_words(results_with({"a": {"a": 9, "b": 1}, "b": {"b": 10}}, TWO), [], tmp_path)
    assert told == [
        "if you name the task of a row: mean accuracy 62.5% over 2 tasks; nothing was forgotten",
        "if you do not, the run finds the task: 50.0% of the rows are predicted correctly, and 95.0% are recognised as rows "
        "of their task",
    ]


def test_the_last_lines_name_tasks_that_are_often_taken_for_another(tmp_path: Path) -> None:
    chosen = {"a": {"a": 6, "b": 4}, "b": {"b": 8, "a": 2}, "c": {"a": 9, "c": 1}}
    R = [[0.75, math.nan, math.nan], [0.75, 0.5, math.nan], [0.75, 0.5, 0.5]]
    told = in_plain_words(results_with(chosen, R), [], tmp_path / "my run")
    assert told[2].startswith(
        "often taken for another task, with the share of rows recognised: c 10%, a 60%. If tasks ask"
    )
    assert told[3] == f"  continual-petl predict '{tmp_path}/my run' --candidates 3 TEXT"
    many = {f"t{n}": {"t0": 9, f"t{n}": 1} for n in range(1, 40)}
    told = in_plain_words(results_with(many, torch.full((39, 39), 0.5).tril().tolist()), [], tmp_path)
    assert "t8 10% and 31 more. If tasks" in told[2]


@pytest.mark.parametrize(
    ("R", "metrics", "ok", "first"),
    [
        (
            [[0.75, math.nan], [0.5, 0.5]],
            ("accuracy",) * 2,
            True,
            "mean accuracy 50.0% over 2 tasks; forgetting 0.2500",
        ),
        (
            TWO,
            ("accuracy",) * 2,
            False,
            "mean accuracy 62.5% over 2 tasks; but not all of them are as they were learned, see above",
        ),
        (
            TWO,
            ("f1", "accuracy"),
            True,
            "mean score 0.6250 over 2 tasks; it mixes metrics: f1, accuracy; nothing was forgotten",
        ),
        ([[0.75, math.nan], [math.nan, math.nan]], ("accuracy",) * 2, True, None),
    ],
)
def test_the_last_lines_claim_only_what_is_known(
    R: list[list[float]], metrics: tuple[str, ...], ok: bool, first: str | None, tmp_path: Path
) -> None:
    checks = [] if ok else [damaged("a")]
    told = in_plain_words(results_with({"a": {"a": 1}, "b": {"b": 1}}, R, metrics=metrics), checks, tmp_path)
    assert told[:1] == ([] if first is None else [f"if you name the task of a row: {first}"])
    assert in_plain_words(results_with({"a": {"a": 1}}, [[0.5]]), [], tmp_path) == []
