"""``continual-petl predict`` without a task: the run finds the task of each text."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from continual_petl.cli._console import print_json
from continual_petl.cli.answers_out import line_of, record_of
from continual_petl.cli.columns_out import Record
from continual_petl.cli.limits import given_limits
from continual_petl.cli.rows_in import unnamed_rows
from continual_petl.engine.run import Run
from continual_petl.errors import InputError
from continual_petl.predictor.one_or_many import Row
from continual_petl.store.open_run import check_can_route

if TYPE_CHECKING:
    from continual_petl.predictor.routed import RoutedAnswer  # with torch


def answer_unnamed(run: Run, arguments: argparse.Namespace, rows_at_a_time: int) -> int:
    """Print the answer to each row with its task; return the exit code."""
    check_can_route(run.store)  # before anything heavy is imported
    rows = unnamed_rows(arguments.texts, given_limits(arguments, [spec.limits for spec in run.spec.tasks]))
    records: list[Record] = []
    for row, answer in _answered(run, rows, arguments, rows_at_a_time):
        if arguments.json:
            records.append(_record(run, row, answer))
        else:
            print(_line(run, answer))
    if arguments.json:
        print_json(records)
    return 0


def _answered(
    run: Run, rows: Iterator[Row], arguments: argparse.Namespace, rows_at_a_time: int
) -> Iterator[tuple[Row, RoutedAnswer]]:
    """Yield rows with their answers, in their order."""
    before = 0
    while window := list(islice(rows, rows_at_a_time)):
        answers = run.predict(window, batch_size=arguments.batch_size, unknown=arguments.unknown or "reject")
        assert isinstance(answers, list)
        before += len(window)
        yield from zip(window, answers, strict=True)
    if before == 0:
        raise InputError("no text to answer: give texts as arguments or on standard input")


def _line(run: Run, answer: RoutedAnswer) -> str:
    if answer.task is None or answer.answer is None:
        nearest = next(iter(answer.runners_up))
        return f"(unknown)\tnearest task: {nearest} {answer.task_probability:.4f}"
    return f"{answer.task} {answer.task_probability:.4f}\t{line_of(answer.answer, run.store.manifest(answer.task))}"


def _record(run: Run, row: Row, answer: RoutedAnswer) -> Record:
    """Return a row's record as with a task, and what the router found."""
    manifest = run.store.manifest(answer.task or next(iter(answer.runners_up)))
    found: Record = {
        "task": answer.task,
        "task_probability": answer.task_probability,
        "runners_up": dict(answer.runners_up),
    }
    return found | record_of(row, answer.answer, manifest)
