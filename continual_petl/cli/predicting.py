"""The rows of ``continual-petl predict``, and their predictions as lines, as JSON or in a file.

Rows are read, predicted and written in portions, so memory use does not grow with their number. A file is read twice: a
problem in any of its rows is reported before anything is predicted.
"""

from __future__ import annotations

import argparse
import json
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from textwrap import indent

from typing_extensions import override

from continual_petl.cli._console import plain, print_json, say
from continual_petl.cli.columns_out import CopiedColumns, Types, given_columns, prediction_columns
from continual_petl.cli.predictions_out import in_portions, line_of, write_records
from continual_petl.cli.rows_in import Named, given_rows, read_rows, read_unnamed_rows, unnamed_rows
from continual_petl.cli.shared_options import given_limits
from continual_petl.cli.skipped_rows import SkippedRows, Unusable
from continual_petl.engine.run import Run
from continual_petl.errors import InputError, counted
from continual_petl.heads.predictions import Prediction
from continual_petl.predictor.records import ANSWER, NEAR_TIE, SHARES, Record, TaskColumns, record_of, route_of
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.open_run import check_can_route
from continual_petl.streams.reader.records import format_of

NUM_BATCHES = 32
"""Number of batches read together, so that rows of similar length can share a batch."""
ROUTE: Types = {"task": {"text"}, "task_probability": {"float"}, "task_near_tie": {"bool"}, "runners_up": {"shares"}}
"""The columns for the task that was found for a row."""
UNKNOWN = "(unknown)"


class PredictedRows(ABC):
    """The rows that the arguments give, and what is said about each prediction.

    Args:
        run: the run.
        arguments: the arguments of the command.
    """

    added: Sequence[str] = (ANSWER, SHARES, NEAR_TIE)
    """The columns that predictions always add; the kinds of the tasks may add more."""

    def __init__(self, run: Run, arguments: argparse.Namespace) -> None:
        self.run, self.arguments = run, arguments
        self.specs = {spec.name: spec for spec in run.spec.tasks}
        known = [spec.limits for name, spec in self.specs.items() if arguments.task in (None, name)]
        self.limits = given_limits(arguments, known)
        self.skipped = SkippedRows(arguments)
        self.copied: CopiedColumns | None = None
        """The columns of the input file, if they are written too."""

    @abstractmethod
    def given(self) -> Iterator[Named]:
        """Yield the texts of the arguments or of standard input."""

    @abstractmethod
    def read(self, copied: CopiedColumns | None, unusable: Unusable | None) -> Iterator[Named]:
        """Yield the rows of the input file."""

    @abstractmethod
    def predict(self, rows: list[Named]) -> list[Prediction]:
        """Return the predictions for some rows."""

    @abstractmethod
    def certificates(self) -> list[Certificate]:
        """Return the certificates of the tasks that may have predicted a row."""

    @abstractmethod
    def types(self) -> Types:
        """Return the columns of the output file."""

    @abstractmethod
    def line(self, named: Named, prediction: Prediction) -> str:
        """Return one printable line."""

    @abstractmethod
    def record(self, named: Named, prediction: Prediction) -> Record:
        """Return the record for JSON, or for the output file."""

    @abstractmethod
    def task_of(self, named: Named, prediction: Prediction) -> str:
        """Return the task that predicted a row, or `UNKNOWN`."""

    def predicted(self) -> Iterator[list[tuple[Named, Prediction]]]:
        """Return rows and predictions in portions and in order; a file is first read once, to check it.

        Raises:
            InputError: if there is no row, or one of a file cannot be used.
        """
        rows, missing = self._rows()
        if (first := next(rows, None)) is None:
            raise InputError(missing)
        return in_portions(chain([first], rows), NUM_BATCHES * self.arguments.batch_size, self.predict)

    def _rows(self) -> tuple[Iterator[Named], str]:
        arguments = self.arguments
        if not arguments.input:
            missing = "there are no rows to predict: give texts as arguments, on standard input, or with --input FILE"
            return self.given(), missing
        if arguments.output and format_of(Path(arguments.input)) != ".txt":
            self.copied = CopiedColumns(Path(arguments.input), Path(arguments.output), self.added)
        with self.skipped.written() as unusable:
            for _ in self.read(self.copied, unusable):
                pass
        if self.copied is not None:
            self.copied.check_added(self.certificates())
        missing = f"--input {arguments.input}: it has no rows; give a file with one record per row"
        return self.read(None, self.skipped.known), missing


class NamedRows(PredictedRows):
    """Rows whose task is named, by --task or by a column of the input file."""

    def __init__(self, run: Run, arguments: argparse.Namespace) -> None:
        super().__init__(run, arguments)
        self._certificates: dict[str, Certificate] = {}
        if arguments.task is not None:
            self._certificate(arguments.task)

    def _certificate(self, task: str) -> Certificate:
        if task not in self._certificates:
            self.run.check_learned(task)
            self._certificates[task] = self.run.store.certificate(task)
        return self._certificates[task]

    def generate(self) -> Iterator[str]:
        """Yield the pieces of the text that the task generates for the only row."""
        ((task, row, _),) = self.given()
        return self.run.generate(row, task)

    @override
    def given(self) -> Iterator[Named]:
        return given_rows(self.arguments.texts, self._certificate(self.arguments.task), self.limits)

    @override
    def read(self, copied: CopiedColumns | None, unusable: Unusable | None) -> Iterator[Named]:
        return read_rows(
            Path(self.arguments.input),
            lambda task: TaskColumns.of(self._certificate(task), self.specs.get(task)),
            task=self.arguments.task,
            task_column=self.arguments.task_column,
            limits=self.limits,
            seen=None if copied is None else copied.add,
            whole=bool(self.arguments.output),
            unusable=unusable,
        )

    @override
    def predict(self, rows: list[Named]) -> list[Prediction]:
        tasks = [task for task, _, _ in rows]
        one_or_many = tasks[0] if len(set(tasks)) == 1 else tasks
        return self.run.predict([row for _, row, _ in rows], one_or_many, batch_size=self.arguments.batch_size)

    @override
    def certificates(self) -> list[Certificate]:
        return [*self._certificates.values()]

    @override
    def types(self) -> Types:
        # Rows that were not read from columns all belong to the task that --task names.
        known = given_columns(self._certificate(self.arguments.task)) if self.copied is None else self.copied.types
        return known | prediction_columns(self.certificates())

    @override
    def line(self, named: Named, prediction: Prediction) -> str:
        return line_of(prediction, self._certificate(named[0]))

    @override
    def record(self, named: Named, prediction: Prediction) -> Record:
        (task, row, record), column = named, self.arguments.task_column
        found = record_of(row, prediction, self._certificate(task), record)
        return found if column is None or self.arguments.output else {column: task} | found

    @override
    def task_of(self, named: Named, prediction: Prediction) -> str:
        return named[0]


class RoutedRows(PredictedRows):
    """Rows whose task the run finds; their place for a task is empty.

    Raises:
        InputError: if the run cannot find tasks.
    """

    added = (*ROUTE, *PredictedRows.added)

    def __init__(self, run: Run, arguments: argparse.Namespace) -> None:
        check_can_route(run.store)  # before anything heavy is imported
        super().__init__(run, arguments)

    @override
    def given(self) -> Iterator[Named]:
        return (("", row, None) for row in unnamed_rows(self.arguments.texts, self.limits))

    @override
    def read(self, copied: CopiedColumns | None, unusable: Unusable | None) -> Iterator[Named]:
        seen, whole = None if copied is None else copied.add, bool(self.arguments.output)
        rows = read_unnamed_rows(Path(self.arguments.input), self.limits, seen, whole=whole, unusable=unusable)
        return (("", row, record) for row, record in rows)

    @override
    def predict(self, rows: list[Named]) -> list[Prediction]:
        arguments = self.arguments
        return self.run.predict([row for _, row, _ in rows], batch_size=arguments.batch_size, unknown=arguments.unknown)

    @override
    def certificates(self) -> list[Certificate]:
        return [self.run.store.certificate(task) for task in self.run.store.tasks]

    @override
    def types(self) -> Types:
        certificates = self.certificates()
        if self.copied is not None:
            known = self.copied.types
        else:
            known = {"text": {"text"}, "text_pair": {"text"}}
            known |= {name: kinds for each in certificates for name, kinds in given_columns(each).items()}
        return known | prediction_columns(certificates) | ROUTE

    @override
    def line(self, named: Named, prediction: Prediction) -> str:
        near = " (near a tie)" if prediction.task_near_tie else ""
        if prediction.task is None:
            nearest = next(iter(prediction.runners_up))
            return f"{UNKNOWN}{near}\tnearest task: {nearest} {prediction.task_probability:.4f}"
        line = line_of(prediction, self.run.store.certificate(prediction.task))
        return f"{prediction.task} {prediction.task_probability:.4f}{near}\t{line}"

    @override
    def record(self, named: Named, prediction: Prediction) -> Record:
        _, row, record = named
        certificate = self.run.store.certificate(prediction.task or next(iter(prediction.runners_up)))
        found, own = route_of(prediction), record_of(row, prediction, certificate, record)
        return found | own if record is None else own | found

    @override
    def task_of(self, named: Named, prediction: Prediction) -> str:
        return prediction.task or UNKNOWN


def write(rows: PredictedRows) -> None:
    """Write rows and predictions to the output file, and say what was written."""
    counts: Counter[str] = Counter()
    windows, path = rows.predicted(), Path(rows.arguments.output)

    def records() -> Iterator[list[Record]]:
        for window in windows:
            counts.update(rows.task_of(*each) for each in window)
            yield [rows.record(*each) for each in window]

    write_records(path, records(), rows.types(), raw_csv=rows.arguments.raw_csv)
    if rows.arguments.json:
        print_json({"output": str(path), "answers": dict(counts)} | rows.skipped.as_json())
        return
    unknown = f", {counts[UNKNOWN]:,} of them unknown" if counts[UNKNOWN] else ""
    say(f"wrote {counted(counts.total(), 'prediction')} to {path}{unknown}{rows.skipped.in_words()}")


def show(rows: PredictedRows) -> None:
    """Print each prediction as soon as it is available: as a line, or as an entry of one JSON list."""
    unknown, before = 0, "["
    for each in chain.from_iterable(rows.predicted()):
        if rows.arguments.json:
            (task, row, _), prediction = each  # only a file keeps the other columns of a row
            record = rows.record((task, row, None), prediction)
            text = json.dumps(plain(record), indent=2, sort_keys=True, allow_nan=False)
            print(before + "\n" + indent(text, "  "), end="")
            before = ","
        else:
            print(rows.line(*each))
            unknown += rows.task_of(*each) == UNKNOWN
    if rows.arguments.json:
        print("\n]")
    elif unknown:
        resemble = "1 row resembles" if unknown == 1 else f"{unknown:,} rows resemble"
        print(
            f"{resemble} no task's rows closely enough to be predicted (more common if a task has few validation rows); "
            "name the task with --task, or take the nearest with --unknown nearest",
            file=sys.stderr,
        )
