"""Rows and records: the types of rows, rows from the columns of a record, and a row with its prediction as one record.

A record is a row of a table: its cells by column. A task's rows are read from the columns of its training data, which are
listed under `columns` in the run's stream file, so that the file that a task was learned from can be used unchanged (but
here paths of images are relative to the working directory), or from the standard columns; rows without a task are read from
the standard columns.
"""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from continual_petl.errors import InputError, known_names
from continual_petl.heads.predictions import Prediction
from continual_petl.kind import MAX_OPTIONS
from continual_petl.kind_registry import kind_of, kinds
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.streams.reader.delimited import separators_hint
from continual_petl.streams.schema.containers import plain
from continual_petl.streams.schema.option_columns import cell_of, is_there
from continual_petl.streams.schema.stream_spec import TaskSpec
from continual_petl.streams.sources.conversations import conversation, from_cell, messages_of
from continual_petl.streams.sources.row_options import options_fault, options_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Row = Any
"""A text, or a pair of texts; for a task on conversations, a text or a list of messages; for token-classification, a list of
words, or a text that is split at its spaces; for a task whose rows have their own options, a pair of a text (or messages) and
a list of options; for image-classification, an image in any form that the task's data may have: a
path, a PIL image, an array, or bytes in a mapping."""


class PillowImage(Protocol):
    """Stands in for ``PIL.Image.Image`` in type checking, since Pillow may not be installed."""

    @property
    def mode(self) -> str:
        """The colour mode."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""


OneRow: TypeAlias = (
    "str | os.PathLike[str] | tuple[Any, ...] | Mapping[str, Any] | PillowImage | NDArray[np.number[Any]]"
)
"""The types of a single row, which gets a single prediction: a text, a path, a tuple, a mapping with a value for each column,
a Pillow image, or an array of numbers ``(height, width)`` or ``(height, width, 3)``. A list is always several rows."""

Unknown = Literal["reject", "nearest"]
"""What happens to a row that does not resemble the rows of any task: it gets no prediction, or the prediction of the most
probable task."""

Record = dict[str, Any]
ANSWER, SHARES, NEAR_TIE = "answer", "probabilities", "near_tie"
UNNAMED = ("text", "source", "tokens", "image", "messages")
"""The columns that rows without a task are read from."""
_BESIDE = {"text_pair": ("text",), "options": ("source", "messages")}
"""The columns that are read in addition, and beside which ones."""
_CHAT = "the text of a user message, or a list of messages {role, content} that ends with a user message"
_EMPTY = (None, "")


def standard_columns(certificate: Certificate) -> tuple[str, ...]:
    """Return the standard column names of a task's kind: the keys of ``columns`` in a stream file."""
    names = kind_of(certificate).row_columns(pair=certificate.pair, options=certificate.options_from == "row")
    return names if certificate.chat is None else ("messages", *names[1:])


@dataclass(frozen=True)
class TaskColumns:
    """A task and the columns that may hold its rows."""

    certificate: Certificate
    own: tuple[str, ...]
    """The columns of its training data."""
    standard: tuple[str, ...]

    @classmethod
    def of(cls, certificate: Certificate, spec: TaskSpec | None) -> TaskColumns:
        """Return the columns of a learned task.

        Args:
            certificate: the certificate of the task.
            spec: the task in the run's stream file; None if it is no longer there.
        """
        standard = standard_columns(certificate)
        if spec is None or spec.kind != certificate.kind:  # the stream file was edited and describes other data
            return cls(certificate, standard, standard)
        keys = standard
        if certificate.chat is not None:
            keys = (next(iter(spec.columns.read_by(spec.kind))), *standard[1:])
        read = spec.columns.read_by(spec.kind)
        own = tuple(name for key in keys if (name := read.get(key)) is not None)
        return cls(certificate, standard if len(own) < len(keys) else own, standard)

    def check_beside(self, task_column: str) -> None:
        """Refuse a task column that this task would read as part of its row."""
        if task_column in self.own:
            raise InputError(
                f"--task-column {task_column}: task {self.certificate.task!r} reads its rows from a column of this name "
                f"({_listed(self.own)} in the data it was learned from); rename the column that names the tasks"
            )

    def names_in(self, record: dict[str, Any], where: str, *, mixed: bool) -> tuple[str, ...]:
        """Return the columns to read in a record: the task's own if all are present, else the standard ones.

        Args:
            record: one row of a file.
            where: its location, for messages.
            mixed: whether the file holds rows of several tasks with different columns.

        Raises:
            InputError: if neither set is present; or, in a mixed file, if both are present and only the task's own columns
                are empty.
        """
        for names in (self.own, self.standard):
            if all(is_there(name, record) for name in names):
                if mixed and names is not self.standard:
                    self._check_unambiguous(record, where)
                return names
        several = len(self.own) > 1
        other = "" if self.own == self.standard else f" (or {_listed(self.standard)})"
        found = known_names([*map(repr, record)]) if record else "no column"
        raise InputError(
            f"{where}: task {self.certificate.task!r} reads the column{'s' * several} {_listed(self.own)}{other}; found "
            f"{found}. Rename the column{'s' * several} to match.{separators_hint(record)}"
        )

    def _check_unambiguous(self, record: dict[str, Any], where: str) -> None:
        """Refuse an ambiguous row in a table of several tasks, whose columns may belong to another task."""
        filled = [name for name in self.standard if record.get(name) not in _EMPTY and name not in self.own]
        if filled and all(cell_of(name, record) in _EMPTY for name in self.own):
            raise InputError(
                f"{where}: task {self.certificate.task!r} reads {_listed(self.own)}, which this row leaves empty "
                f"while it fills "
                f"{_listed(filled)}; it is not clear which is meant. Fill the former, or remove the latter from the file; a "
                ".jsonl file may have different columns in each row."
            )

    def unusable(self, where: str, name: str, value: Any) -> InputError:
        """Return the error for a value that is not a valid row or part of one."""
        reads = f"{where}: task {self.certificate.task!r} reads the column {name!r}"
        if value is None:
            return InputError(f"{reads}, which is null here: fill it, or leave the row out.")
        if value == [] or (isinstance(value, str) and not value.strip()):
            return InputError(f"{reads}, which is empty here: fill it, or leave the row out.")
        form = kind_of(self.certificate).cell_form if self.certificate.chat is None else _CHAT
        if self.certificate.options_from == "row" and name in (self.own[-1], self.standard[-1]):
            form = f"a list of 2 to {MAX_OPTIONS:,} different texts"
        held = reprlib.repr(value)
        return InputError(f"{reads} as {form}; here it holds {held}. Write it in this form, or leave the row out.")


def _listed(names: Sequence[str]) -> str:
    return " and ".join(map(repr, names))


def row_of_record(
    record: Record, where: str, task: TaskColumns, names: Sequence[str], *, in_table: bool, images: bool = False
) -> Row:
    """Return the row that a record holds.

    Args:
        record: the record.
        where: its location, for messages.
        task: the task that predicts.
        names: the columns to read; see `TaskColumns.names_in`.
        in_table: whether cells are texts, which hold lists as JSON.
        images: whether an image may be anything that the task learns from, rather than a path only.

    Raises:
        InputError: if a cell is not valid.
    """
    if task.certificate.options_from == "row":
        value = cell_of(names[-1], record) if in_table else plain(cell_of(names[-1], record))
        options = options_of(value) if in_table or not isinstance(value, str) else None
        if options_fault(value, options) is not None:
            raise task.unusable(where, names[-1], value)
        return _source(record, where, task, names[:-1], in_table, images), options
    return _source(record, where, task, names, in_table, images)


def _source(record: Record, where: str, task: TaskColumns, names: Sequence[str], in_table: bool, images: bool) -> Row:
    if kind_of(task.certificate).per_word:
        words = words_in(plain(record[names[0]]), in_table=in_table)
        if (
            not isinstance(words, list)
            or not words
            or not all(isinstance(word, str) and word.strip() for word in words)
        ):
            raise task.unusable(where, names[0], words)
        return words
    if task.certificate.chat is not None:
        row = messages_in(plain(record[names[0]]), in_table=in_table)
        try:
            conversation(messages_of(row), task.certificate.chat.system, ends="user")
        except ValueError as error:
            raise InputError(f"{task.unusable(where, names[0], row)} What is wrong: {error}.") from error
        return row
    for name in names:
        image = images and kind_of(task.certificate).reads_images and not isinstance(record[name], str | None)
        if not image and (not isinstance(record[name], str) or not record[name].strip()):
            raise task.unusable(where, name, record[name])
    return (record[names[0]], record[names[1]]) if task.certificate.pair else record[names[0]]


def unnamed_columns() -> set[str]:
    """Return the columns that a row without a task may be read from."""
    return {*UNNAMED, *_BESIDE, *(name for kind in kinds() if kind.always_pairs for name in kind.columns[:2])}


def unnamed_row(record: Record, where: str, *, in_table: bool, advice: str) -> Row:
    """Return the row that a record without a task holds, in one of the standard columns.

    Args:
        record: the record.
        where: its location, for messages.
        in_table: whether cells are texts, which hold lists as JSON.
        advice: how to name the task instead, for messages.

    Raises:
        InputError: unless exactly one of the columns is filled, beside nothing that could not be read with it.
    """
    for first, second in (kind.columns[:2] for kind in kinds() if kind.always_pairs):
        if not {first, second} - record.keys() and not {"text", "text_pair"} & record.keys():
            pair = {"text": record[first], "text_pair": record[second]}
            record = {key: value for key, value in record.items() if key not in (first, second)} | pair
    found = [name for name in UNNAMED if name in record and not _is_empty(record[name])]
    if len(found) != 1:
        empty = [name for name in UNNAMED if name in record]
        if empty and not found:
            raise InputError(
                f"{where}: the column{'s' * (len(empty) > 1)} {' and '.join(map(repr, empty))} "
                f"{'are' if len(empty) > 1 else 'is'} empty here: fill {'one of them' if len(empty) > 1 else 'it'}, or leave "
                "the row out."
            )
        what = f"fills {' and '.join(map(repr, found))}" if found else f"has {column_names(record)}"
        raise InputError(
            f"{where}: a row without a task name is read from one of the columns {', '.join(UNNAMED)} (a pair also "
            f"from text_pair, and a row with its own options from options); this one {what}. Rename the column, or name the "
            f"task: {advice}."
        )
    # An empty list of options is a row without any, and not a column of other rows.
    beside = [name for name in _BESIDE if not _is_empty(record.get(name)) or isinstance(record.get(name), list | tuple)]
    for name in beside:
        if found[0] not in _BESIDE[name]:
            raise InputError(
                f"{where}: a row without a task name that fills {name!r} has to fill {' or '.join(_BESIDE[name])}, but this "
                f"one fills {found[0]!r}, beside which {name!r} would not be read. Rename or remove the column {name!r}, or "
                f"name the task: {advice}."
            )
    row = record[found[0]]
    if found == ["tokens"]:
        return words_in(plain(row), in_table=in_table)
    if found == ["messages"]:
        row = messages_in(plain(row), in_table=in_table)
    if beside == ["text_pair"]:
        row = (row, record["text_pair"])
    for text in row if isinstance(row, tuple) else (row,):
        if found[0] not in ("image", "messages") and not isinstance(text, str):
            raise InputError(f"{where}: column {found[0]!r} holds {text!r:.80}, which is not a text. Write it as text.")
        if isinstance(text, str) and not text.strip():
            raise InputError(
                f"{where}: column {found[0]!r} holds a text that is empty here: fill it, or leave the row out."
            )
    if beside != ["options"]:
        return row
    value = record["options"] if in_table else plain(record["options"])
    options = options_of(value) if in_table or not isinstance(value, str) else None
    if (fault := options_fault(value, options)) is not None:
        raise InputError(
            f"{where}: column 'options': {fault}; a row with its own options needs a list of 2 to {MAX_OPTIONS:,} different "
            "texts. Write it in this form, or remove the column."
        )
    return row, options


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | tuple) and not value)


def words_in(value: Any, *, in_table: bool) -> Any:
    """Return a list of words; in a table the value may be a JSON list, as in training data."""
    if not isinstance(value, str):
        return value
    if in_table and value.lstrip().startswith("["):
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            return value.split()
        return found if isinstance(found, list) else value.split()
    return value.split()


def messages_in(value: Any, *, in_table: bool) -> Any:
    """Return a list of messages, parsed from JSON in a table, or the text of a message."""
    return from_cell(value) if in_table else value


def column_names(record: Record) -> str:
    """Return the names of a record's columns, for messages."""
    return ", ".join(map(repr, record)) or "no column"


def record_of(row: Row, prediction: Prediction, certificate: Certificate, given: Record | None = None) -> Record:
    """Return a record of a row and its prediction, without the task.

    Args:
        row: the row.
        prediction: its prediction.
        certificate: certificate of its task; if the task is unknown, of the most probable one.
        given: the row with all its columns; None means the row with the standard column names.
    """
    if given is None:
        names = standard_columns(certificate)
        given = dict(zip(names, row if len(names) > 1 else (row,), strict=True))
    record: Record = {**given, ANSWER: prediction.value}
    if prediction.probabilities is not None:
        record[SHARES] = dict(prediction.probabilities)
    record |= {name: prediction.details.get(name) for name in kind_of(certificate).details}
    if has_near_ties(certificate):
        record[NEAR_TIE] = None if prediction.task is None else prediction.near_tie
    return record


def has_near_ties(certificate: Certificate) -> bool:
    """Return whether records of a task say if a prediction is near a tie: in bf16, where that happens to some rows."""
    return certificate.environment.precision == "bf16" and not kind_of(certificate).has_numbers


def route_of(prediction: Prediction) -> Record:
    """Return the part of a record that describes the task found for a row."""
    return {
        "task": prediction.task,
        "task_probability": prediction.task_probability,
        "task_near_tie": prediction.task_near_tie,
        "runners_up": dict(prediction.runners_up),
    }
