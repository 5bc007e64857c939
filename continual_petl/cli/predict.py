"""``continual-petl predict``: predictions for rows from arguments, standard input or a file.

Rows are read, predicted and written in portions, so memory use does not grow with their number. A file is read twice: a
problem in any of its rows is reported before anything is predicted.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from textwrap import indent

from continual_petl.cli._console import out, plain, print_json
from continual_petl.cli.columns_out import CopiedColumns, Types, given_columns, prediction_columns
from continual_petl.cli.limits import given_limits
from continual_petl.cli.predict_unnamed import predict_unnamed
from continual_petl.cli.predictions_out import check_output, in_portions, line_of, write_records
from continual_petl.cli.rows_in import Named, given_rows, read_rows
from continual_petl.cli.skipped_rows import SkippedRows, Unusable
from continual_petl.engine.run import Run
from continual_petl.errors import InputError, counted, printable, quoted
from continual_petl.heads.predictions import Prediction
from continual_petl.predictor.records import ANSWER, NEAR_TIE, SHARES, Record, Row, TaskColumns, record_of
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.streams.reader.records import format_of, reader_of
from continual_petl.streams.schema.data_spec import is_url

NUM_BATCHES = 32
"""Number of batches read together, so that rows of similar length can share a batch."""
Predicted = tuple[str, Row, Record | None, Prediction]


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    _check(arguments)
    run = Run(arguments.run, remote_code=arguments.remote_code)
    if arguments.task is None and arguments.task_column is None:
        return predict_unnamed(run, arguments, NUM_BATCHES * arguments.batch_size)
    given = _Given(run, arguments)
    if arguments.task is not None:
        given.certificate(arguments.task)
    if arguments.stream:
        ((task, row, _),) = given_rows(arguments.texts, given.certificate(arguments.task), given.limits)
        for piece in run.generate(row, task):
            print(printable(piece), end="", flush=True)
        print()
        return 0
    if arguments.output:
        check_output(Path(arguments.output), Path(arguments.input) if arguments.input else None)
    rows, copied = given.rows()
    windows, certificates = _predicted(run, rows, arguments.batch_size), given.certificates
    if arguments.output:
        # Rows that were not read from columns all belong to the task that --task names.
        types = given_columns(certificates[arguments.task]) if copied is None else copied.types
        types |= prediction_columns(list(certificates.values()))
        _write(windows, certificates, types, arguments, given.skipped)
    elif arguments.json:
        _print_records(_records(window, certificates, arguments.task_column) for window in windows)
    else:
        for window in windows:
            for task, _, _, prediction in window:
                print(line_of(prediction, certificates[task]))
    return 0


class _Given:
    """The input rows, and the certificates of their tasks."""

    def __init__(self, run: Run, arguments: argparse.Namespace) -> None:
        self._run, self._arguments = run, arguments
        self._specs = {spec.name: spec for spec in run.spec.tasks}
        known = [spec.limits for name, spec in self._specs.items() if arguments.task in (None, name)]
        self.limits = given_limits(arguments, known)
        self.skipped = SkippedRows(arguments)
        self.certificates: dict[str, Certificate] = {}

    def certificate(self, task: str) -> Certificate:
        if task not in self.certificates:
            self._run.check_learned(task)
            self.certificates[task] = self._run.store.certificate(task)
        return self.certificates[task]

    def rows(self) -> tuple[Iterator[Named], CopiedColumns | None]:
        """Return the rows, and the columns to copy from a file to the output; a file is first read once, to check it."""
        arguments, copied = self._arguments, None
        if not arguments.input:
            rows = given_rows(arguments.texts, self.certificate(arguments.task), self.limits)
            missing = "there are no rows to predict: give texts as arguments, on standard input, or with --input FILE"
        else:
            if arguments.output and format_of(Path(arguments.input)) != ".txt":
                copied = CopiedColumns(Path(arguments.input), Path(arguments.output))
            with self.skipped.written() as unusable:
                for _ in self._from_file(copied, unusable):
                    pass
            if copied is not None:
                copied.check_added([*self.certificates.values()])
            rows = self._from_file(None, self.skipped.known)
            missing = f"--input {arguments.input}: it has no rows; give a file with one record per row"
        first = next(rows, None)
        if first is None:
            raise InputError(missing)
        return chain([first], rows), copied

    def _from_file(self, copied: CopiedColumns | None, unusable: Unusable | None) -> Iterator[Named]:
        arguments = self._arguments
        return read_rows(
            Path(arguments.input),
            lambda task: TaskColumns.of(self.certificate(task), self._specs.get(task)),
            task=arguments.task,
            task_column=arguments.task_column,
            limits=self.limits,
            seen=None if copied is None else copied.add,
            whole=bool(arguments.output),
            unusable=unusable,
        )


def _predicted(run: Run, rows: Iterator[Named], batch_size: int) -> Iterator[list[Predicted]]:
    """Yield rows with their predictions, in portions and in order."""

    def predict(window: list[Named]) -> list[Prediction]:
        tasks = [task for task, _, _ in window]
        return run.predict(
            [row for _, row, _ in window], tasks[0] if len(set(tasks)) == 1 else tasks, batch_size=batch_size
        )

    for window in in_portions(rows, NUM_BATCHES * batch_size, predict):
        yield [(*named, prediction) for named, prediction in window]


def _records(window: list[Predicted], certificates: dict[str, Certificate], column: str | None) -> list[Record]:
    return [
        ({} if column is None else {column: task}) | record_of(row, prediction, certificates[task])
        for task, row, _, prediction in window
    ]


def _write(
    windows: Iterable[list[Predicted]],
    certificates: dict[str, Certificate],
    types: Types,
    arguments: argparse.Namespace,
    skipped: SkippedRows,
) -> None:
    counts: Counter[str] = Counter()

    def records() -> Iterator[list[Record]]:
        for window in windows:
            counts.update(task for task, _, _, _ in window)
            yield [record_of(row, prediction, certificates[task], given) for task, row, given, prediction in window]

    path = Path(arguments.output)
    write_records(path, records(), types, raw_csv=arguments.raw_csv)
    if arguments.json:
        print_json({"output": str(path), "answers": dict(counts)} | skipped.as_json())
    else:
        said = f"wrote {counted(counts.total(), 'prediction')} to {path}{skipped.in_words()}"
        out().print(said, markup=False, soft_wrap=True)


def _print_records(windows: Iterable[list[Record]]) -> None:
    """Print one JSON list, each record as soon as it is available."""
    before = "["
    for record in chain.from_iterable(windows):
        print(
            before + "\n" + indent(json.dumps(plain(record), indent=2, sort_keys=True, allow_nan=False), "  "), end=""
        )
        before = ","
    print("\n]")


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that cannot be combined."""
    for text in arguments.texts:
        if reader_of(text) is not None and os.path.isfile(text):
            raise InputError(
                f"{text}: this is a file, but a text is expected here; `--input {quoted(text)}` predicts the rows in it"
            )
    if arguments.texts and arguments.input:
        raise InputError("texts and --input were both given; give one of them")
    if arguments.input and is_url(arguments.input):
        raise InputError(f"--input {arguments.input}: URLs are not supported here; download the file and give its path")
    if arguments.task is not None and arguments.task_column is not None:
        raise InputError(
            "--task, --task-column: both were given; give the task of all rows, or the column that names the task of each row"
        )
    if arguments.unknown is not None and (arguments.task is not None or arguments.task_column is not None):
        raise InputError("--unknown: only for rows whose task is not named; leave it out")
    if arguments.task_column is not None and not arguments.input:
        raise InputError("--task-column: names a column of a file; give the file with --input")
    if arguments.task_column in {"text", "text_pair", "source", "tokens", "image", ANSWER, SHARES, NEAR_TIE}:
        raise InputError(
            f"--task-column {arguments.task_column}: this name is reserved for rows and predictions; rename the column"
        )
    if arguments.raw_csv and Path(arguments.output or "").suffix != ".csv":
        raise InputError(
            "--raw-csv: only for --output FILE.csv; other formats keep all texts as they are, so leave it out"
        )
    if arguments.bad_rows == "skip" and not (arguments.input and arguments.output):
        raise InputError("--bad-rows skip: needs --input and --output, beside which the rows left out are written")
    if arguments.stream:
        _check_stream(arguments)
    if arguments.batch_size < 1:
        raise InputError(f"--batch-size: got {arguments.batch_size}; must be at least 1")


def _check_stream(arguments: argparse.Namespace) -> None:
    for name in ("json", "output", "input"):
        if getattr(arguments, name):
            raise InputError(
                f"--stream, --{name}: both were given; --stream prints one text as it is generated, and --{name} is for "
                "complete predictions: leave one of the two out"
            )
    if arguments.task is None:
        raise InputError("--stream: the task is not named; give the task that generates the text with --task")
    if len(arguments.texts) != 1:
        raise InputError(f"--stream: got {counted(len(arguments.texts), 'text')} as arguments; give exactly one TEXT")
