"""Input rows: texts, lines, or records of a file, each with its task."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from continual_petl.cli.skipped_rows import Unusable, UnusableRows
from continual_petl.errors import InputError
from continual_petl.kind_registry import kind_of
from continual_petl.predictor.records import (
    Row,
    TaskColumns,
    column_names,
    row_of,
    standard_columns,
    unnamed_columns,
    unnamed_form,
)
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.streams.reader.bounds import check_regular
from continual_petl.streams.reader.faulty_rows import Bad
from continual_petl.streams.reader.records import FORMATS, format_of, read_records, reader_of
from continual_petl.streams.reader.text_file import refuse_unknown
from continual_petl.streams.reader.wanted import LISTS, Wanted
from continual_petl.streams.reader.word_columns import looks_like_columns
from continual_petl.streams.schema.limits_spec import DEFAULTS, LimitsSpec
from continual_petl.streams.sources.row_ids import ID_COLUMNS
from continual_petl.streams.stream_file.file_types import refuse_other_type

_TABLES = (".csv", ".tsv")
Record = dict[str, Any]
Named = tuple[str, Row, Record | None]
"""A task, one of its rows, and the row's full record from the file; None for rows without columns."""
_Row = TypeVar("_Row")
ColumnsOf = Callable[[str], TaskColumns]
"""Returns the columns of a learned task, or raises `InputError` with the known tasks. Called once for each task."""


def row_of_line(line: str, where: str, certificate: Certificate | None, limits: LimitsSpec) -> Row:
    """Parse one line of text as a row; without a task, it is a text, or two texts separated by a tab."""
    _check_text(line, where, limits)
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
    is_pair = bool(tab) if certificate is None else certificate.pair
    for place, text in zip(("first", "second"), (first, second) if is_pair else (line,), strict=False):
        if not text.strip():
            what = f"the {place} text of this pair" if is_pair else "this text"
            raise InputError(f"{where}: {what} is empty, and every row needs a text; fill it, or leave the row out.")
    if is_pair:
        return first, second
    return line if certificate is None else kind_of(certificate).row_of_line(line)


def given_rows(texts: Sequence[str], certificate: Certificate, limits: LimitsSpec) -> Iterator[Named]:
    """Yield the rows given as arguments, or else the rows on standard input as they arrive."""
    lines = iter(texts) if texts else _standard_input(limits)
    for number, line in enumerate(lines, 1):
        yield certificate.task, row_of_line(line, f"text {number}", certificate, limits), None


def unnamed_rows(texts: Sequence[str], limits: LimitsSpec) -> Iterator[Row]:
    """Yield rows without a task, from arguments or standard input: a text, or two texts separated by a tab."""
    for number, line in enumerate(iter(texts) if texts else _standard_input(limits), 1):
        yield row_of_line(line, f"text {number}", None, limits)


def read_rows(
    path: Path,
    columns_of: ColumnsOf,
    *,
    task: str | None,
    task_column: str | None,
    limits: LimitsSpec = DEFAULTS,
    seen: Callable[[Record, str], None] | None = None,
    whole: bool = False,
    unusable: Unusable | None = None,
) -> Iterator[Named]:
    """Yield the rows of a file, each with its task; the file is never completely in memory.

    Args:
        path: path of the file.
        columns_of: returns the columns of a task.
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
    has_lines, in_table = _has_lines(path), format_of(path) in _TABLES  # once, since they may look into a whole folder
    if has_lines and task is None:
        raise InputError(f"--task-column: {path} has no columns; give a .jsonl, .csv, .tsv or .parquet file")
    _check_lines(path, columns_of, task)
    reads = None if task is None or has_lines else columns_of(task)
    wanted = None if reads is None or whole else reads.read
    known: dict[str, TaskColumns] = {}

    def named(record: Record, where: str) -> Named:
        name = task if task_column is None else _task_of(record, task_column, where)
        assert name is not None
        if name not in known:
            try:
                known[name] = columns_of(name)
                if task_column is not None:
                    known[name].check_beside(task_column)
            except InputError as error:
                raise InputError(f"{where}: {error}") from error
        if has_lines:
            return name, row_of_line(record["text"], where, known[name].certificate, limits), None
        made = known[name].completed(record, where)
        form = known[name].form_of(made, where, mixed=task_column is not None)
        return name, row_of(made, where, form, in_table=in_table), record

    reading = _Reading(path, limits, seen, unusable, LISTS if reads is None else reads.lists)
    yield from reading.rows(named, wanted)


def read_unnamed_rows(
    path: Path,
    limits: LimitsSpec = DEFAULTS,
    seen: Callable[[Record, str], None] | None = None,
    *,
    whole: bool = False,
    unusable: Unusable | None = None,
) -> Iterator[tuple[Row, Record | None]]:
    """Yield the rows of a file without task names, from the standard columns, each with its full record; see `read_rows`."""
    has_lines, in_table = _has_lines(path), format_of(path) in _TABLES

    def unnamed(record: Record, where: str) -> tuple[Row, Record | None]:
        if has_lines:
            return row_of_line(record["text"], where, None, limits), None
        form = unnamed_form(record, where, "--task NAME, or --task-column NAME")
        return row_of(record, where, form, in_table=in_table), record

    yield from _Reading(path, limits, seen, unusable).rows(unnamed, None if whole else unnamed_columns())


@dataclass(frozen=True)
class _Reading:
    """How a file is read; see `read_rows`."""

    path: Path
    limits: LimitsSpec
    seen: Callable[[Record, str], None] | None
    unusable: Unusable | None
    lists: Set[str] = LISTS

    def rows(self, row_in: Callable[[Record, str], _Row], columns: Set[str] | None) -> Iterator[_Row]:
        """Yield what ``row_in`` makes of each record and its location; ``columns`` are those to read, or None for all."""
        path, blank = self.path, 0  # the first blank line of those before this one
        _check_file(path)
        reader = reader_of(path)
        has_lines, place = reader == "text", f"--input {path}"
        faulty = UnusableRows(place)
        leave_out = self.unusable or faulty
        bad: Bad = lambda number, what, advice: leave_out(number, f"{what}. {advice}", {})  # noqa: E731
        if columns is not None and reader != "json":  # there, all rows have all columns
            columns = None if has_lines else columns | ID_COLUMNS
        wanted = Wanted(columns, self.lists, typed=columns is None)
        for number, record in read_records(place, path, self.limits, wanted, bad=bad):
            if has_lines and not record["text"].strip():
                blank = blank or number  # no rows if nothing follows
                continue
            blanks = ((line, {"text": ""}) for line in range(blank, number)) if blank else ()
            blank = 0
            for at, found in chain(blanks, [(number, record)]):
                where = f"{place}:{at}"
                try:
                    row = row_in(found, where)
                    if self.seen is not None and not has_lines:
                        self.seen(found, where)
                except InputError as error:
                    leave_out(at, str(error).removeprefix(f"{where}: "), found)
                else:
                    yield row
        faulty.check()


def _has_lines(path: Path) -> bool:
    return reader_of(path) == "text"


def _check_lines(path: Path, columns_of: ColumnsOf, task: str | None) -> None:
    """Refuse words in columns in a file whose lines would be read as sentences."""
    if task is None or not _has_lines(path) or not kind_of((columns := columns_of(task)).certificate).per_word:
        return
    from_columns = columns.data is not None and columns.data.path == "conll"
    if looks_like_columns(str(path), tagged=not from_columns):
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


def _check_text(text: str, where: str, limits: LimitsSpec) -> None:
    if len(text) > limits.cell_chars:
        raise InputError(
            f"{where}: the text has more than {limits.cell_mb:g} million characters (limits.cell_mb). "
            f"{limits.hint('cell_mb', len(text) / 1e6)}"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: {text[error.start]!a} is an unpaired surrogate, which is not valid text; repair it, for instance by "
            "saving the text as UTF-8 again"
        ) from error


def _without_end(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def _without_blank_end(lines: Iterator[str]) -> Iterator[str]:
    """Yield lines as they arrive, except blank lines at the end, which hold no rows."""
    blank: list[str] = []
    for line in lines:
        if line.strip():
            yield from (*blank, line)
            blank.clear()
        elif not blank:  # one blank line is enough, since the caller refuses it
            blank.append(line)


def _standard_input(limits: LimitsSpec) -> Iterator[str]:
    """Yield the lines of standard input, read as UTF-8 whatever the locale, and ended by line feeds only."""
    if sys.stdin.isatty():
        print("one row per line; Ctrl-D ends the input", file=sys.stderr)
    buffer = getattr(sys.stdin, "buffer", None)
    handle = sys.stdin if buffer is None else TextIOWrapper(buffer, encoding="utf-8-sig", newline="\n")
    try:
        limit = limits.cell_chars + 2  # a longer line is refused without reading the rest of it
        lines = iter(sys.stdin) if buffer is None else iter(partial(handle.readline, limit), "")
        yield from _without_blank_end(map(_without_end, lines))
    except UnicodeDecodeError as error:
        raise InputError(f"standard input: not UTF-8: {error}; convert it, for instance with iconv -t UTF-8") from error
    finally:
        if isinstance(handle, TextIOWrapper) and handle is not sys.stdin:
            handle.detach()  # standard input stays open for the caller
