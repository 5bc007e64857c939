"""The rows of ``continual-petl predict``, and their predictions as lines, as JSON or in a file.

Rows are read, predicted and written in portions, so memory use does not grow with their number. A file is read twice: a
problem in any of its rows is reported before anything is predicted, except for what only the tokenizer shows, such as too
many words, which is reported for all rows of a portion.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from textwrap import indent

from continual_petl.cli._console import plain, print_json, remark, say
from continual_petl.cli.columns_out import CopiedColumns, Types, given_columns, prediction_columns
from continual_petl.cli.predictions_out import in_portions, line_of, write_records
from continual_petl.cli.rows_in import Named, given_rows, read_rows
from continual_petl.cli.shared_options import given_limits
from continual_petl.cli.skipped_rows import SkippedRows, Unusable, UnusableRows
from continual_petl.engine.run import Run
from continual_petl.errors import InputError, UnusableRowError, counted
from continual_petl.heads.predictions import Prediction
from continual_petl.predictor.records import (
    ADDED,
    Record,
    TaskColumns,
    candidates_of,
    record_of,
    route_of,
    truncation_notice,
)
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.open_run import check_can_route
from continual_petl.streams.reader.records import format_of

NUM_BATCHES = 32
"""Number of batches read together, so that rows of similar length can share a batch."""
ROUTE: Types = {
    "task": {"text"},
    "task_probability": {"float"},
    "known": {"float"},
    "task_near_tie": {"bool"},
    "runners_up": {"shares"},
}
"""The columns for the task that was found for a row."""
CANDIDATES: Types = {"candidates": {"json"}}
"""The column for the predictions of the most probable tasks."""
UNKNOWN = "(unknown)"


class PredictedRows:
    """The rows that the arguments give, and what is said about each prediction.

    The task of a row is named by --task or by a column of the input file; otherwise the run finds it, and the row's place
    for a task is empty.

    Args:
        run: the run.
        arguments: the arguments of the command.

    Raises:
        InputError: if the task is not learned, or none is named and the run cannot find tasks.
    """

    def __init__(self, run: Run, arguments: argparse.Namespace) -> None:
        self.run, self.arguments = run, arguments
        self._is_named = arguments.task is not None or arguments.task_column is not None
        self._routed = {} if self._is_named else ROUTE | (CANDIDATES if arguments.candidates else {})
        self._specs = {spec.name: spec for spec in run.spec.tasks}
        known = [spec.limits for name, spec in self._specs.items() if arguments.task in (None, name)]
        self._limits = given_limits(arguments, known)
        self.skipped = SkippedRows(arguments)
        self._copied: CopiedColumns | None = None  # the columns of the input file, if they are written too
        self._certificates: dict[str, Certificate] = {}
        self._num_rows, self._truncated = 0, Counter[str]()  # the truncated rows of each task
        if not self._is_named:
            check_can_route(run.store)  # before anything heavy is imported
        elif arguments.task is not None:
            self._certificate(arguments.task)

    def _certificate(self, task: str) -> Certificate:
        if task not in self._certificates:
            self.run.check_learned(task)
            self._certificates[task] = self.run.store.certificate(task)
        return self._certificates[task]

    def _possible(self) -> list[Certificate]:
        """Return the certificates of the tasks that may have predicted a row."""
        return [*self._certificates.values()] if self._is_named else [*map(self._certificate, self.run.store.tasks)]

    def _given(self) -> Iterator[Named]:
        """Yield the texts of the arguments or of standard input."""
        texts, task = self.arguments.texts, self.arguments.task
        return given_rows(texts, None if task is None else self._certificate(task), self._limits)

    def _read(self, copied: CopiedColumns | None, unusable: Unusable | None) -> Iterator[Named]:
        """Yield the rows of the input file."""
        arguments = self.arguments
        return read_rows(
            Path(arguments.input),
            (lambda task: TaskColumns.of(self._certificate(task), self._specs.get(task))) if self._is_named else None,
            task=arguments.task,
            task_column=arguments.task_column,
            limits=self._limits,
            seen=None if copied is None else copied.add,
            whole=bool(arguments.output),
            unusable=unusable,
        )

    def _predict(self, rows: list[Named]) -> list[Prediction]:
        tasks = [named.task for named in rows]
        one_or_many = (tasks[0] or None) if len(set(tasks)) == 1 else tasks
        size, reject, candidates = self.arguments.batch_size, self.arguments.reject, self.arguments.candidates
        listed = [named.row for named in rows]
        return self.run.predict(listed, one_or_many, batch_size=size, reject=reject, candidates=candidates)

    def _by_halves(self, rows: list[Named]) -> Sequence[Prediction | UnusableRowError]:
        """Return a prediction for each row, or of a file what is wrong with the row."""
        try:
            return self._predict(rows)
        except UnusableRowError as error:
            if not self.arguments.input:
                raise
            if len(rows) == 1:
                return [error]
            middle = len(rows) // 2
            return [*self._by_halves(rows[:middle]), *self._by_halves(rows[middle:])]

    def _usable(self, portion: Sequence[tuple[Named, Prediction | UnusableRowError]]) -> list[tuple[Named, Prediction]]:
        """Return the rows that have a prediction.

        Raises:
            InputError: if some have none, and are not to be left out.
        """
        faulty = UnusableRows(f"--input {self.arguments.input}")
        leave_out, usable = self.skipped.add or faulty, list[tuple[Named, Prediction]]()
        for named, found in portion:
            if isinstance(found, UnusableRowError):
                leave_out(named.number, found.reason, named.record or {})
            else:
                usable.append((named, found))
        faulty.check()
        self._num_rows += len(usable)
        self._truncated.update(_nearest(found) for _, found in usable if found.truncated)
        return usable

    def generate(self) -> Iterator[str]:
        """Yield the pieces of the text that the task generates for the only row."""
        (named,) = self._given()
        return self.run.generate(named.row, named.task)

    def predicted(self) -> Iterator[list[tuple[Named, Prediction]]]:
        """Return rows and predictions in portions and in order; a file is first read once, to check it.

        Raises:
            InputError: if there is no row, or one of a file cannot be used.
        """
        rows, missing = self._rows()
        if (first := next(rows, None)) is None:
            raise InputError(missing)
        size = NUM_BATCHES * self.arguments.batch_size
        return map(self._usable, in_portions(chain([first], rows), size, self._by_halves))

    def _rows(self) -> tuple[Iterator[Named], str]:
        arguments = self.arguments
        if not arguments.input:
            missing = "there are no rows to predict: give texts as arguments, on standard input, or with --input FILE"
            return self._given(), missing
        if arguments.output and format_of(Path(arguments.input)) != ".txt":
            # The kinds of the tasks may add more columns.
            added = {*ADDED, *self._routed}
            self._copied = CopiedColumns(Path(arguments.input), Path(arguments.output), added)
        with self.skipped.written() as unusable:
            for _ in self._read(self._copied, unusable):
                pass
        if self._copied is not None:
            self._copied.check_added(self._possible())
        missing = f"--input {arguments.input}: it has no rows; give a file with one record per row"
        return self._read(None, self.skipped.known), missing

    def types(self) -> Types:
        """Return the columns of the output file."""
        certificates = self._possible()
        if self._copied is not None:
            known = self._copied.types
        else:
            known = {} if self._is_named else {"text": {"text"}, "text_pair": {"text"}}
            known |= {name: kinds for each in certificates for name, kinds in given_columns(each).items()}
        return known | prediction_columns(certificates) | self._routed

    def line(self, prediction: Prediction) -> str:
        """Return a printable line, followed by one for each candidate."""
        lines = [self._line(prediction)]
        for each in prediction.candidates:
            assert each.task is not None
            lines.append(f"  {each.task} {each.task_probability:.4f}\t{line_of(each, self._certificate(each.task))}")
        return "\n".join(lines)

    def _line(self, prediction: Prediction) -> str:
        near = " (near a tie)" if prediction.task_near_tie else ""
        answer = None if prediction.task is None else line_of(prediction, self._certificate(prediction.task))
        if self._is_named:
            line = answer or ""
        else:
            found = f"{_nearest(prediction)} {prediction.task_probability:.4f} known {prediction.known:.4f}"
            line = f"{UNKNOWN}{near}\tnearest task: {found}" if answer is None else f"{found}{near}\t{answer}"
        return line + "\ttruncated" * prediction.truncated

    def record(self, named: Named, prediction: Prediction) -> Record:
        """Return the record for JSON, or for the output file."""
        task, column = _nearest(prediction), self.arguments.task_column
        found = record_of(named.row, prediction, self._certificate(task), named.record)
        if self._is_named:
            return found if column is None or self.arguments.output else {column: task} | found
        route = route_of(prediction)
        if self.arguments.candidates:
            route["candidates"] = candidates_of(named.row, prediction, self._certificate)
        return route | found if named.record is None else found | route

    def remark_truncated(self) -> None:
        """Say on standard error how many of the rows that were predicted so far were truncated, if any were."""
        if self._truncated:
            certificates = [self._certificate(task) for task in sorted(self._truncated)]
            remark(
                f"{truncation_notice(self._truncated.total(), self._num_rows, certificates)} (`truncated` says which)"
            )


def _nearest(prediction: Prediction) -> str:
    """Return the task of a row; if it is unknown, the most probable one."""
    return prediction.task or next(iter(prediction.runners_up))


def write(rows: PredictedRows) -> None:
    """Write rows and predictions to the output file, and say what was written."""
    counts: Counter[str] = Counter()
    windows, path = rows.predicted(), Path(rows.arguments.output)

    def records() -> Iterator[list[Record]]:
        for window in windows:
            counts.update(prediction.task or UNKNOWN for _, prediction in window)
            yield [rows.record(*each) for each in window]

    write_records(path, records(), rows.types(), raw_csv=rows.arguments.raw_csv)
    rows.remark_truncated()
    if rows.arguments.json:
        print_json({"output": str(path), "answers": dict(counts)} | rows.skipped.as_json())
        return
    unknown = f", {counts[UNKNOWN]:,} of them unknown" if counts[UNKNOWN] else ""
    say(f"wrote {counted(counts.total(), 'prediction')} to {path}{unknown}{rows.skipped.in_words()}")


def show(rows: PredictedRows) -> None:
    """Print each prediction as soon as it is available: as a line, or as an entry of one JSON list."""
    unknown, before = 0, "["
    for named, prediction in chain.from_iterable(rows.predicted()):
        if rows.arguments.json:
            # Only a file keeps the other columns of a row.
            record = rows.record(named._replace(record=None), prediction)
            text = json.dumps(plain(record), indent=2, sort_keys=True, allow_nan=False)
            print(before + "\n" + indent(text, "  "), end="")
            before = ","
        else:
            print(rows.line(prediction))
            unknown += prediction.task is None
    if rows.arguments.json:
        print("\n]")
    elif unknown:
        resemble = "1 row resembles" if unknown == 1 else f"{unknown:,} rows resemble"
        print(
            f"{resemble} no task's rows closely enough to be predicted (more common if a task has few validation rows); "
            "name the task with --task, or let the most probable one predict with --reject never",
            file=sys.stderr,
        )
    rows.remark_truncated()
