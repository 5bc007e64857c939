"""``continual-petl predict`` without a task: the run finds the task of each row."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from continual_petl.cli._console import out, print_json
from continual_petl.cli.columns_out import CopiedColumns, Types, given_columns, prediction_columns
from continual_petl.cli.limits import given_limits
from continual_petl.cli.predictions_out import check_output, in_portions, line_of, write_records
from continual_petl.cli.rows_in import read_unnamed_rows, unnamed_rows
from continual_petl.cli.skipped_rows import SkippedRows
from continual_petl.engine.run import Run
from continual_petl.errors import InputError, counted
from continual_petl.heads.predictions import Prediction
from continual_petl.predictor.records import ANSWER, NEAR_TIE, SHARES, Record, Row, record_of, route_of
from continual_petl.store.open_run import check_can_route
from continual_petl.streams.reader.records import format_of
from continual_petl.streams.schema.limits_spec import LimitsSpec

Given = tuple[Row, Record | None]
"""A row, and its full record if it is from a file with columns."""
ROUTE: Types = {"task": {"text"}, "task_probability": {"float"}, "task_near_tie": {"bool"}, "runners_up": {"shares"}}
"""The columns for the task that was found for a row."""
UNKNOWN = "(unknown)"


def predict_unnamed(run: Run, arguments: argparse.Namespace, rows_at_a_time: int) -> int:
    """Predict each row with the task that the run finds for it; return the exit code."""
    check_can_route(run.store)  # before anything heavy is imported
    limits = given_limits(arguments, [spec.limits for spec in run.spec.tasks])
    if arguments.output:
        check_output(Path(arguments.output), Path(arguments.input) if arguments.input else None)
    skipped = SkippedRows(arguments)
    rows, types = _rows(arguments, limits, skipped)
    if (first := next(rows, None)) is None:
        raise InputError(
            "there are no rows to predict: give texts as arguments, on standard input, or with --input FILE"
        )
    windows = _predicted(run, chain([first], rows), arguments, rows_at_a_time)
    if arguments.output:
        _write(run, windows, types, arguments, skipped)
    elif arguments.json:
        print_json([_record(run, row, None, each) for window in windows for (row, _), each in window])
    else:
        unknown = 0
        for window in windows:
            for _, prediction in window:
                print(_line(run, prediction))
                unknown += prediction.task is None
        if unknown:
            print(_what_unknown_means(unknown), file=sys.stderr)
    return 0


def _what_unknown_means(count: int) -> str:
    rows = "1 row resembles" if count == 1 else f"{count:,} rows resemble"
    return (
        f"{rows} no task's rows closely enough to be predicted (more common if a task has few validation rows); "
        "name the task with --task, or take the nearest with --unknown nearest"
    )


def _rows(
    arguments: argparse.Namespace, limits: LimitsSpec, skipped: SkippedRows
) -> tuple[Iterator[Given], Types | None]:
    """Return the rows, and the types of the input file's columns, if it has any; the complete file is checked first."""
    if not arguments.input:
        return ((row, None) for row in unnamed_rows(arguments.texts, limits)), None
    path = Path(arguments.input)
    copied = None
    if arguments.output and format_of(path) != ".txt":
        copied = CopiedColumns(path, Path(arguments.output), {*ROUTE, ANSWER, SHARES, NEAR_TIE})
    whole = bool(arguments.output)
    with skipped.written() as unusable:
        for _ in read_unnamed_rows(
            path, limits, None if copied is None else copied.add, whole=whole, unusable=unusable
        ):
            pass
    return read_unnamed_rows(
        path, limits, whole=whole, unusable=skipped.known
    ), None if copied is None else copied.types


def _predicted(
    run: Run, rows: Iterator[Given], arguments: argparse.Namespace, rows_at_a_time: int
) -> Iterator[list[tuple[Given, Prediction]]]:
    """Return an iterator over rows with their predictions, in portions and in order."""

    def predict(window: list[Given]) -> list[Prediction]:
        return run.predict([row for row, _ in window], batch_size=arguments.batch_size, unknown=arguments.unknown)

    return in_portions(rows, rows_at_a_time, predict)


def _line(run: Run, prediction: Prediction) -> str:
    near = " (near a tie)" if prediction.task_near_tie else ""
    if prediction.task is None:
        nearest = next(iter(prediction.runners_up))
        return f"{UNKNOWN}{near}\tnearest task: {nearest} {prediction.task_probability:.4f}"
    line = line_of(prediction, run.store.certificate(prediction.task))
    return f"{prediction.task} {prediction.task_probability:.4f}{near}\t{line}"


def _record(run: Run, row: Row, given: Record | None, prediction: Prediction) -> Record:
    """Return the record of a row, including the task that was found for it."""
    certificate = run.store.certificate(prediction.task or next(iter(prediction.runners_up)))
    found, own = route_of(prediction), record_of(row, prediction, certificate, given)
    return found | own if given is None else own | found


def _write(
    run: Run,
    windows: Iterator[list[tuple[Given, Prediction]]],
    types: Types | None,
    arguments: argparse.Namespace,
    skipped: SkippedRows,
) -> None:
    counts: Counter[str] = Counter()

    def records() -> Iterator[list[Record]]:
        for window in windows:
            counts.update(prediction.task or UNKNOWN for _, prediction in window)
            yield [_record(run, row, given, prediction) for (row, given), prediction in window]

    path = Path(arguments.output)
    certificates = [run.store.certificate(task) for task in run.store.tasks]
    if types is None:
        types = {"text": {"text"}, "text_pair": {"text"}}
        types |= {name: kinds for certificate in certificates for name, kinds in given_columns(certificate).items()}
    write_records(path, records(), types | prediction_columns(certificates) | ROUTE, raw_csv=arguments.raw_csv)
    if arguments.json:
        print_json({"output": str(path), "answers": dict(counts)} | skipped.as_json())
    else:
        unknown = f", {counts[UNKNOWN]:,} of them unknown" if counts[UNKNOWN] else ""
        out().print(
            f"wrote {counted(counts.total(), 'prediction')} to {path}{unknown}{skipped.in_words()}",
            markup=False,
            soft_wrap=True,
        )
