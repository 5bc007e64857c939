"""Rows and records: the types of rows, rows from the columns of a record, and a row with its prediction as one record.

A record is a row of a table: its cells by column. A task's rows are read from the columns of its training data, which are
listed under `columns` in the run's stream file, so that the file that a task was learned from can be used unchanged (but
here paths of images are relative to the working directory), or from the standard columns; rows without a task are read from
the standard columns.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from continual_petl.errors import InputError, counted, known_names, named_tasks
from continual_petl.heads.predictions import Prediction
from continual_petl.kind import MAX_OPTIONS
from continual_petl.kind_registry import kind_of, kinds
from continual_petl.spelling import half_character
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.streams.reader.delimited import separators_hint
from continual_petl.streams.reader.times import as_text, is_time
from continual_petl.streams.reader.wanted import LISTS, list_columns
from continual_petl.streams.schema.containers import plain
from continual_petl.streams.schema.data_spec import template_fields
from continual_petl.streams.schema.option_columns import cell_of, is_there
from continual_petl.streams.schema.stream_spec import DataSpec, TaskSpec
from continual_petl.streams.sources.cells import (
    BadText,
    FaultyJson,
    from_cell,
    image_in,
    options_in,
    split_cells,
    text_in,
    words_in,
)
from continual_petl.streams.sources.checks import Where
from continual_petl.streams.sources.conversations import conversation, from_text, messages_of
from continual_petl.streams.sources.templates import fill_templates, has_fields, needed

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

Record = dict[str, Any]
ANSWER, SHARES, NEAR_TIE, TRUNCATED = "answer", "probabilities", "near_tie", "truncated"
ADDED = (ANSWER, SHARES, NEAR_TIE, TRUNCATED)
"""The keys that predictions of any kind may add to a row."""
UNNAMED = ("text", "source", "tokens", "image", "messages")
"""The columns that rows without a task are read from."""
_BESIDE = {"text_pair": ("text",), "options": ("source", "messages")}
"""The columns that are read in addition, and beside which ones."""
_UNKNOWN = "a row without a task name"
_FORMS = {
    "text": "a text",
    "tokens": "a list of words, or a text with spaces between the words",
    "messages": "the text of a user message, or a list of messages {role, content} that ends with a user message",
    "image": "an image: its path, a PIL image, an array, or a mapping with its bytes",
}
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
    data: DataSpec | None = None
    """How its training data was read; ``templates`` and ``lists`` also make the columns of rows to predict."""
    lists: frozenset[str] = LISTS
    """The columns that hold a list in each row, as in its training data, or of those that its rows may be read from."""

    @classmethod
    def of(cls, certificate: Certificate, spec: TaskSpec | None) -> TaskColumns:
        """Return the columns of a learned task.

        Args:
            certificate: the certificate of the task.
            spec: the task in the run's stream file; None if it is no longer there.
        """
        standard = standard_columns(certificate)
        usual = list_columns({name: name for name in standard})
        if spec is None or spec.kind != certificate.kind:  # the stream file was edited and describes other data
            return cls(certificate, standard, standard, lists=usual)
        keys = standard
        if certificate.chat is not None:
            keys = (next(iter(spec.columns.read_by(spec.kind))), *standard[1:])
        read = spec.columns.read_by(spec.kind)
        own = tuple(name for key in keys if (name := read.get(key)) is not None)
        data = spec.data if isinstance(spec.data, DataSpec) else None
        lists = list_columns(read, None if data is None else data.lists) | (usual - {*own})
        return cls(certificate, standard if len(own) < len(keys) else own, standard, data, lists)

    @property
    def read(self) -> frozenset[str]:
        """The columns of a file that its rows may be read from."""
        return needed({name: name for name in self.own}, self._templates) | {*self.standard}

    @property
    def _templates(self) -> dict[str, str]:
        """The templates that make a column that its rows are read from."""
        made = (self.data and self.data.templates) or {}
        return {name: template for name, template in made.items() if name in self.own}

    @property
    def _marks(self) -> Mapping[str, str]:
        """What separates the parts of a text, for the columns in which a text is a list."""
        return (self.data and self.data.lists) or {}

    @property
    def parts(self) -> dict[str, bool]:
        """The columns that its templates put together, and whether each of them holds lists, as for ``{column.0}``."""
        fields = [field for template in self._templates.values() for field in template_fields(template)]
        lists = {name for name, _, key in (field.partition(".") for field in fields) if key.isdecimal()}
        return {name: name in lists for field in fields for name in (field, field.partition(".")[0])}

    def completed(self, record: Record, where: str) -> Record:
        """Return a record with the columns that `data.templates` and `data.lists` make of those that it has.

        Raises:
            InputError: if a cell cannot be used for it.
        """
        templates = self._templates
        if not templates and not self._marks:
            return record
        place = Where(task=self.certificate.task, split="input", origin=where)
        lists = {name: mark for name, mark in self._marks.items() if isinstance(record.get(name), str)}
        table = split_cells(place, {name: [cell] for name, cell in record.items()}, lists)
        if not all(is_there(name, record) for name in self.own) and has_fields(table, templates, one_row=True):
            table = fill_templates(place, table, templates, one_row=True)
        return {name: cells[0] for name, cells in table.items()}

    def check_task_column(self, task_column: str) -> None:
        """Refuse a task column that this task would read as part of its row."""
        if task_column in self.own:
            raise InputError(
                f"--task-column {task_column}: task {self.certificate.task!r} reads its rows from a column of this name "
                f"({_listed(self.own)} in the data it was learned from); rename the column that names the tasks"
            )

    def form_of(self, record: dict[str, Any], where: str, *, mixed: bool) -> RowForm:
        """Return the form of a record: it is read from the task's own columns if all are present, else the standard ones.

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
                return RowForm.of(self.certificate, names)
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


def _listed(names: Sequence[str]) -> str:
    return " and ".join(map(repr, names))


@dataclass(frozen=True)
class RowForm:
    """The columns that a row is read from, and what they hold."""

    reader: str
    """Who reads the row, for messages."""
    columns: tuple[str, ...]
    holds: str
    """What the first column holds: ``text`` (also the second one), ``tokens``, ``messages`` or ``image``."""
    options: bool = False
    """Whether the last column holds the options of the row."""
    system: str | None = None
    """The system prompt of the task."""
    asked: bool = False
    """Whether a conversation has to end with a question, since its task is known."""

    @classmethod
    def of(cls, certificate: Certificate, columns: tuple[str, ...] | None = None) -> RowForm:
        """Return the form of the rows of a task.

        Args:
            certificate: the certificate of the task.
            columns: the columns that they are read from; None: the standard ones.
        """
        kind, chat = kind_of(certificate), certificate.chat
        return cls(
            f"task {certificate.task!r}",
            columns or standard_columns(certificate),
            "messages" if chat is not None else "tokens" if kind.per_word else "image" if kind.reads_images else "text",
            options=certificate.options_from == "row",
            system=None if chat is None else chat.system,
            asked=True,
        )

    @property
    def cells(self) -> str:
        """What the first column holds in words, for messages."""
        return _FORMS[self.holds]

    @property
    def in_words(self) -> str:
        """What a row is in words, if it is given as one value."""
        if self.options:
            return "a pair of a source and a list of options, such as ('Is it red?', ['yes', 'no'])"
        return self.cells if len(self.columns) == 1 else f"a pair of texts, as a tuple ({', '.join(self.columns)})"

    def read(self, place: int, value: Any) -> Any:
        """Return what a row has in one column.

        Args:
            place: the place of the column in ``columns``.
            value: what it holds.

        Raises:
            ValueError: if it is not of this form, with the reason; `BadText` if it is, but cannot be used.
        """
        at_end = self.options and place == len(self.columns) - 1
        if at_end:
            texts = [*options_in(value)]
        elif self.holds == "tokens":
            texts = words_in(value.split() if isinstance(value, str) else value)
        elif self.holds == "messages":
            messages = messages_of(value)
            return conversation(messages, self.system, ends="user") if self.asked else messages
        elif self.holds == "image":
            return image_in(value)
        else:
            value = text_in(value if isinstance(value, str) or not is_time(value) else as_text(value))
            texts = [value]
        for text in texts:
            if not text.isascii() and (half := half_character(text)) is not None:
                raise BadText(f"no text, since {half} is half of a surrogate pair")
        return value if self.holds == "text" and not at_end else texts

    def unusable(self, where: str, name: str, value: Any, why: str) -> InputError:
        """Return the error for a cell that is not of this form."""
        reads = f"{where}: {self.reader} reads the column {name!r}"
        if why in ("missing", "empty"):
            gone = "null" if why == "missing" else why
            return InputError(f"{reads}, which is {gone} here: fill it, or leave the row out.")
        is_last = self.options and name == self.columns[-1]
        form = f"a list of 2 to {MAX_OPTIONS:,} different texts" if is_last else self.cells
        held = with_reason(reprlib.repr(value), why)
        return InputError(f"{reads} as {form}; here it holds {held}. Write it in this form, or leave the row out.")


def with_reason(shown: str, why: str) -> str:
    """Return a value as it is shown, with the reason why it cannot be used, unless that says no more than the value."""
    return shown if why.startswith(shown) else f"{shown} ({why})"


def read_record(record: Record, where: str, own: TaskColumns | None, *, advice: str, mixed: bool = False) -> Row:
    """Return the row that a record holds.

    Args:
        record: the record.
        where: its location, for messages.
        own: the columns of its task; None: the task has to be found.
        advice: how to name the task, for messages.
        mixed: whether the table holds rows of several tasks with different columns.

    Raises:
        InputError: if the columns of a row are not there, or a cell is not valid.
    """
    record = record if own is None else own.completed(record, where)
    form = unnamed_form(record, where, advice) if own is None else own.form_of(record, where, mixed=mixed)
    return row_of(record, where, form)


def row_of(record: Record, where: str, form: RowForm) -> Row:
    """Return the row that a record holds in columns of a form; raises `InputError` if a cell is not valid."""
    parts = []
    for place, name in enumerate(form.columns):
        value = cell_of(name, record)
        if form.holds == "messages" and not place:
            value = plain(from_text(value))
        elif form.holds == "tokens" or (form.options and place):
            value = plain(from_cell(value))
        try:
            found = form.read(place, value)
        except ValueError as error:
            shown = cell_of(name, record) if isinstance(value, FaultyJson) else value
            raise form.unusable(where, name, shown, str(error)) from error
        # A task on conversations takes texts too, and other tasks may read the same row.
        as_given = form.holds == "messages" and not place and (form.asked or not isinstance(value, str))
        parts.append(value if as_given else found)
    return parts[0] if len(parts) == 1 else tuple(parts)


def unnamed_columns() -> set[str]:
    """Return the columns that a row without a task may be read from."""
    return {*UNNAMED, *_BESIDE, *(name for kind in kinds() if kind.always_pairs for name in kind.columns[:2])}


def unnamed_form(record: Record, where: str, advice: str) -> RowForm:
    """Return the form of a record without a task, which is read from one of the standard columns.

    Args:
        record: the record.
        where: its location, for messages.
        advice: how to name the task instead, for messages.

    Raises:
        InputError: unless exactly one of the columns is filled, beside nothing that could not be read with it.
    """
    found: list[tuple[str, ...]] = [(name,) for name in UNNAMED if name in record and not _is_empty(record[name])]
    empty = [name for name in UNNAMED if name in record]
    pairs = [kind.columns[:2] for kind in kinds() if kind.always_pairs]
    if not {"text", "text_pair"} & record.keys():
        found += [pair for pair in pairs if {*pair} <= record.keys()]
    if len(found) != 1:
        if empty and not found:
            nothing = all(record[name] is None for name in empty)
            raise InputError(
                f"{where}: {_UNKNOWN} reads the column{'s' * (len(empty) > 1)} {_listed(empty)}, which "
                f"{'are' if len(empty) > 1 else 'is'} {'null' if nothing else 'empty'} here: fill "
                f"{'one of them' if len(empty) > 1 else 'it'}, or leave the row out."
            )
        what = f"fills {_listed([names[0] for names in found])}" if found else f"has {column_names(record)}"
        raise InputError(
            f"{where}: a row without a task name is read from one of the columns {', '.join(UNNAMED)} (a pair also "
            f"from text_pair, and a row with its own options from options); this one {what}. Rename the column, or name the "
            f"task: {advice}."
        )
    (names,) = found
    # An empty list of options is a row without any, and not a column of other rows.
    beside = [name for name in _BESIDE if not _is_empty(record.get(name)) or isinstance(record.get(name), list | tuple)]
    for name in beside:
        if names[0] not in _BESIDE[name]:
            raise InputError(
                f"{where}: a row without a task name that fills {name!r} has to fill {' or '.join(_BESIDE[name])}, but this "
                f"one fills {names[0]!r}, beside which {name!r} would not be read. Rename or remove the column {name!r}, or "
                f"name the task: {advice}."
            )
    holds = names[0] if names[0] in _FORMS else "text"
    return RowForm(_UNKNOWN, (*names, *beside), holds, options="options" in beside)


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | tuple) and not value)


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
        given = dict(zip(names, row if len(names) > 1 else (_without_bytes(row),), strict=True))
    record: Record = {**given, ANSWER: prediction.value}
    if prediction.probabilities is not None:
        record[SHARES] = dict(prediction.probabilities)
    record |= {name: prediction.details.get(name) for name in kind_of(certificate).details}
    if has_near_ties(certificate):
        record[NEAR_TIE] = None if prediction.task is None else prediction.near_tie
    if can_truncate(certificate):
        record[TRUNCATED] = prediction.truncated
    return record


def _without_bytes(row: Row) -> Row:
    """Return a row in which an image that came with the bytes of its file is named by its path, or their number."""
    held, path = (row.get("bytes"), row.get("path")) if isinstance(row, Mapping) else (row, None)
    return row if not isinstance(held, bytes) else path or f"{len(held):,} bytes"


def has_near_ties(certificate: Certificate) -> bool:
    """Return whether records of a task say if a prediction is near a tie: in bf16, where that happens to some rows."""
    return certificate.environment.precision == "bf16" and not kind_of(certificate).has_numbers


def can_truncate(certificate: Certificate) -> bool:
    """Return whether records of a task say if only a part of a row was read: of texts, not of images."""
    return not kind_of(certificate).reads_images


def truncation_notice(number: int, of: int, certificates: Sequence[Certificate]) -> str:
    """Return what to tell the user if rows were truncated.

    Args:
        number: number of truncated rows.
        of: number of all rows.
        certificates: certificates of the tasks of the truncated rows; for those of unknown tasks, of the most probable one.
    """
    rooms = {kind_of(each).rooms(each.max_length, each.max_target_length)[0] for each in certificates}
    tokens = counted(max(rooms), "token") if len(rooms) == 1 else f"{min(rooms):,} to {max(rooms):,} tokens"
    read = f"{named_tasks([each.task for each in certificates])} read{'s' * (len(certificates) == 1)}"
    rows = "the row is" if of == 1 else f"{number:,} of {of:,} rows {'is' if number == 1 else 'are'}"
    return (
        f"{rows} longer than the {tokens} that {read}, so only a part of {'it' if number == 1 else 'them'} was read: shorten "
        "or divide such rows, or learn the task with a larger backbone.max_length"
    )


def candidates_of(row: Row, prediction: Prediction, certificate_of: Callable[[str], Certificate]) -> list[Record]:
    """Return a record for each candidate of a prediction, without the row."""
    return [
        {"task": task, "task_probability": each.task_probability} | record_of(row, each, certificate_of(task), {})
        for each in prediction.candidates
        if (task := each.task) is not None
    ]


def route_of(prediction: Prediction) -> Record:
    """Return the part of a record that describes the task found for a row."""
    return {
        "task": prediction.task,
        "task_probability": prediction.task_probability,
        "known": prediction.known,
        "task_near_tie": prediction.task_near_tie,
        "runners_up": dict(prediction.runners_up),
    }
