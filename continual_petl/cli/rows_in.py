"""Input rows: texts, lines, or records of a file, each with its task."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

from continual_petl.cli.skipped_rows import Unusable, UnusableRows
from continual_petl.errors import InputError
from continual_petl.kind_registry import kind_of
from continual_petl.predictor.records import (
    Row,
    RowForm,
    TaskColumns,
    column_names,
    read_record,
    standard_columns,
    unnamed_columns,
)
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.streams.reader.bounds import check_regular
from continual_petl.streams.reader.faulty_rows import Bad, Numbered
from continual_petl.streams.reader.records import FORMATS, read_records, reader_of
from continual_petl.streams.reader.text_file import refuse_unknown
from continual_petl.streams.reader.wanted import LISTS, Wanted
from continual_petl.streams.reader.word_columns import looks_like_columns
from continual_petl.streams.schema.limits_spec import DEFAULTS, LimitsSpec
from continual_petl.streams.sources.row_ids import ID_COLUMNS
from continual_petl.streams.stream_file.file_types import refuse_other_type

Record = dict[str, Any]


class Named(NamedTuple):
    """One row with its task."""

    task: str
    """Empty if it has to be found."""
    row: Row
    record: Record | None
    """Its full record from the file; None for rows without columns."""
    number: int
    """Its line, or its number among the rows."""


ColumnsOf = Callable[[str], TaskColumns]
"""Returns the columns of a learned task, or raises `InputError` with the known tasks. Called once for each task."""


def row_of_line(line: str, where: str, certificate: Certificate | None, limits: LimitsSpec) -> Row:
    """Parse one line of text as a row; without a task, it is a text, or two texts separated by a tab."""
    if len(line) > limits.cell_chars:
        raise InputError(
            f"{where}: the text has more than {limits.cell_mb:g} million characters (limits.cell_mb). "
            f"{limits.hint('cell_mb', len(line) / 1e6)}"
        )
    first, tab, second = line.partition("\t")
    if certificate is not None and certificate.options_from == "row":
        raise InputError(
            f"{where}: in this task each row has its own options, so give --input a .jsonl, .csv, .tsv or .parquet file with "
            f"the columns {' and '.join(standard_columns(certificate))}, or with the columns that the task was learned from"
        )
    if certificate is not None and certificate.pair and not tab and line.strip():
        raise InputError(
            f"{where}: this task was learned on pairs, so write two texts separated by a tab (in a shell: "
            f"$'one text\\tother text'), or give --input a file with the columns "
            f"{' and '.join(standard_columns(certificate))}, or with the columns that the task was learned from"
        )
    texts = (first, second) if (bool(tab) if certificate is None else certificate.pair) else (line,)
    per_word = certificate is not None and kind_of(certificate).per_word
    form = RowForm("", ("text", "text_pair")[: len(texts)], "tokens" if per_word else "text")
    parts = []
    for place, text in enumerate(texts):
        try:
            parts.append(form.read(place, text))
        except ValueError as error:
            what = f"the {('first', 'second')[place]} text of this pair" if len(texts) > 1 else "this text"
            repair = "fill it" if str(error) == "empty" else "repair it, for instance by saving it as UTF-8 again"
            raise InputError(
                f"{where}: {what} is {error}, and every row needs a text; {repair}, or leave the row out."
            ) from error
    return parts[0] if len(parts) == 1 else tuple(parts)


def given_rows(texts: Sequence[str], certificate: Certificate | None, limits: LimitsSpec) -> Iterator[Named]:
    """Yield the rows given as arguments, or else the rows on standard input as they arrive; see `row_of_line`."""
    task = "" if certificate is None else certificate.task
    lines = enumerate(iter(texts) if texts else _standard_input(limits), 1)
    rows: Iterable[Numbered] = ((number, {"text": line}) for number, line in lines)
    for number, row in rows if texts else _without_last_blanks(rows):
        yield Named(task, row_of_line(row["text"], f"text {number}", certificate, limits), None, number)


def read_rows(
    path: Path,
    columns_of: ColumnsOf | None = None,
    *,
    task: str | None = None,
    task_column: str | None = None,
    limits: LimitsSpec = DEFAULTS,
    seen: Callable[[Record, str], None] | None = None,
    whole: bool = False,
    unusable: Unusable | None = None,
) -> Iterator[Named]:
    """Yield the rows of a file, each with its task; the file is never completely in memory.

    Args:
        path: path of the file.
        columns_of: returns the columns of a task; None: the rows have no task, which is then empty, and are read from the
            standard columns.
        task: the task of all rows.
        task_column: the column that names the task of each row, if there is no single task.
        limits: how large the file and its cells may be.
        seen: called with each record and its location.
        whole: whether records have all their columns, and not only those that tasks read.
        unusable: told of each row that cannot be used, which is then left out; None: all are reported in one error, after
            the last row.

    Raises:
        InputError: if the file, or without ``unusable`` any of its rows, cannot be used; the message names their lines.
    """
    reader = reader_of(path)  # once, since it may look into a whole folder
    has_lines = reader == "text"
    if has_lines and task_column is not None:
        raise InputError(f"--task-column: {path} has no columns; give a .jsonl, .csv, .tsv or .parquet file")
    reads = None if columns_of is None or task is None else columns_of(task)
    if has_lines and reads is not None:
        _check_lines(path, reads)
    rows = _Rows(columns_of, task, task_column, limits, has_lines=has_lines)
    _check_file(path)
    columns: Set[str] | None = unnamed_columns() if columns_of is None else None if reads is None else reads.read
    if whole or has_lines:
        columns = None
    elif columns is not None and reader != "json":  # there, all rows have all columns
        columns |= ID_COLUMNS
    wanted = Wanted(columns, LISTS if reads is None else reads.lists, typed=columns is None)
    place = f"--input {path}"
    faulty = UnusableRows(place)
    leave_out = unusable or faulty
    bad: Bad = lambda number, what, advice: leave_out(number, f"{what}. {advice}", {})  # noqa: E731
    found = read_records(place, path, limits, wanted, bad=bad)
    for number, record in _without_last_blanks(found) if has_lines else found:
        where = f"{place}:{number}"
        try:
            name, row = rows.row(record, where)
        except InputError as error:
            leave_out(number, str(error).removeprefix(f"{where}: "), record)
            continue
        if seen is not None and not has_lines:
            seen(record, where)
        yield Named(name, row, None if has_lines else record, number)
    faulty.check()


@dataclass(frozen=True)
class _Rows:
    """How the records of a file become rows; the arguments are those of `read_rows`."""

    columns_of: ColumnsOf | None
    task: str | None
    task_column: str | None
    limits: LimitsSpec
    has_lines: bool
    """Whether each record is a line of text."""
    known: dict[str, TaskColumns] = field(default_factory=dict)

    def row(self, record: Record, where: str) -> tuple[str, Row]:
        """Return the task and the row that a record holds.

        Raises:
            InputError: if it cannot be used.
        """
        own = self._columns(record, where)
        certificate = None if own is None else own.certificate
        name = "" if certificate is None else certificate.task
        if self.has_lines:
            return name, row_of_line(record["text"], where, certificate, self.limits)
        advice, mixed = "--task NAME, or --task-column NAME", self.task_column is not None
        return name, read_record(record, where, own, advice=advice, mixed=mixed)

    def _columns(self, record: Record, where: str) -> TaskColumns | None:
        name = self.task if self.task_column is None else _task_of(record, self.task_column, where)
        if self.columns_of is None or name is None:
            return None
        if name not in self.known:
            try:
                self.known[name] = self.columns_of(name)
                if self.task_column is not None:
                    self.known[name].check_task_column(self.task_column)
            except InputError as error:
                raise InputError(f"{where}: {error}") from error
        return self.known[name]


def _without_last_blanks(lines: Iterable[Numbered]) -> Iterator[Numbered]:
    """Yield lines except blank ones at the end, which hold no rows."""
    blank = 0  # the first blank line of those before this one
    for number, record in lines:
        if not record["text"].strip():
            blank = blank or number
            continue
        if blank:
            yield from ((line, {"text": ""}) for line in range(blank, number))
            blank = 0
        yield number, record


def _check_lines(path: Path, columns: TaskColumns) -> None:
    """Refuse words in columns in a file whose lines would be read as sentences."""
    from_columns = columns.data is not None and columns.data.path == "conll"
    if kind_of(columns.certificate).per_word and looks_like_columns(str(path), tagged=not from_columns):
        raise InputError(
            f"--input {path}: each line of this file looks like a word and its tag, as in CoNLL files, but in a .txt "
            "file each line is a sentence: give the file the suffix .conll, or send its lines to standard input"
        )


def _check_file(path: Path) -> None:
    """Refuse missing files, folders, and files that hold no rows by their names."""
    check_regular(f"--input {path}", str(path))
    refuse_other_type(path, "a file with rows to predict", takes=("rows", "data"), where="--input ")
    if reader_of(path) is None:
        if os.path.isfile(path):
            refuse_unknown(f"--input {path}", str(path))
        if os.path.isdir(path):
            raise InputError(
                f"--input {path}: this is a folder; give a file, a folder of images, or one row per line on standard input"
            )
        raise InputError(f"--input {path}: ends in {path.suffix!r}; allowed: {FORMATS}, txt")
    if not os.path.exists(path):
        raise InputError(f"--input {path}: there is no such file; check the path, which is relative to {Path.cwd()}")


def _task_of(record: dict[str, Any], column: str, where: str) -> str:
    name = record.get(column)
    if not isinstance(name, str) or not name:
        problem = (
            f"there is no such column, only {column_names(record)}" if column not in record else f"it holds {name!r}"
        )
        raise InputError(
            f"{where}: --task-column {column}: {problem}. Give the column that names a learned task in every row, or --task "
            "for all rows."
        )
    return name


def _without_end(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def _standard_input(limits: LimitsSpec) -> Iterator[str]:
    """Yield the lines of standard input, read as UTF-8 whatever the locale, and ended by line feeds only."""
    if sys.stdin.isatty():
        print("one row per line; Ctrl-D ends the input", file=sys.stderr)
    buffer = getattr(sys.stdin, "buffer", None)
    handle = sys.stdin if buffer is None else TextIOWrapper(buffer, encoding="utf-8-sig", newline="\n")
    try:
        limit = limits.cell_chars + 2  # a longer line is refused without reading the rest of it
        lines = iter(sys.stdin) if buffer is None else iter(partial(handle.readline, limit), "")
        yield from map(_without_end, lines)
    except UnicodeDecodeError as error:
        raise InputError(f"standard input: not UTF-8: {error}; convert it, for instance with iconv -t UTF-8") from error
    finally:
        if isinstance(handle, TextIOWrapper) and handle is not sys.stdin:
            handle.detach()  # standard input stays open for the caller
