"""Reads the rows given to `predict`, `predict_all`, `generate` and `similar`: one row or several, in any container.

A list is always several rows, and a tuple is always one row; the other types of a single row are those of `records.OneRow`.
Tables and mappings hold records, which are read by the names of their columns: the columns that the task was learned from, or
the standard ones (`TaskColumns`); without a task, the standard ones.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, KeysView, Mapping, Sequence, Set
from functools import cached_property
from typing import Any

import numpy as np

from continual_petl.errors import InputError, counted
from continual_petl.kind_registry import kind_of
from continual_petl.predictor.records import UNNAMED, Row, TaskColumns, read_record
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.store import Store
from continual_petl.streams.schema.containers import (
    Record,
    is_column,
    plain,
    record_of,
    records_of,
    rows_in,
)
from continual_petl.streams.schema.option_columns import names_of
from continual_petl.streams.schema.stream_spec import TaskSpec
from continual_petl.streams.sources.conversations import is_message
from continual_petl.streams.stream_file.yaml_file import load_stream

ASK = "give the argument task"


class Given:
    """Rows as they were given, to be read for their tasks.

    Args:
        store: the run's store.
        rows: one row, or several of them in any container; see `rows_in`.
        tasks: the tasks whose columns records have; empty if the tasks have to be found.
        single: whether only one row is asked for, so that a list of messages can only be one conversation.

    Raises:
        InputError: if ``rows`` is neither one row nor several, or a list of messages, which looks like one row.
    """

    def __init__(self, store: Store, rows: Any, tasks: Sequence[str] = (), *, single: bool = False) -> None:
        self._store, self._tasks = store, tasks
        if isinstance(rows, np.ndarray) and rows.ndim == 0:
            rows = rows.item()
        record = record_of(rows) if self._is_record(rows) else None
        columns = None if record is None else self._as_columns(record)
        self.one = columns is None and (record is not None or _is_one(rows, single))
        if columns is not None:
            self._items: list[Any] = columns
        else:
            self._items = [rows if record is None else record] if self.one else rows_in(rows, "rows")

    def __len__(self) -> int:
        return len(self._items)

    def rows(self, task: str) -> list[Row]:
        """Return the rows as rows of one task; raises `InputError` if a record cannot be read."""
        return self.rows_of([task] * len(self))

    def rows_of(self, tasks: Sequence[str]) -> list[Row]:
        """Return the rows, each as a row of its own task; raises `InputError` if a record cannot be read."""
        mixed = len(set(tasks)) > 1
        pairs = zip(self._items, tasks, strict=True)
        images = {task for task in {*tasks} if kind_of(self._certificate(task)).reads_images}
        if images and not self.one:
            _check_whole([item for item, task in zip(self._items, tasks, strict=True) if task in images])
        return [self._row(item, number, task, mixed) for number, (item, task) in enumerate(pairs, 1)]

    def unnamed(self, *, images: bool) -> list[Row]:
        """Return the rows without knowing their tasks; raises `InputError` if a record cannot be read.

        Args:
            images: whether a task on images is among those that may be found.
        """
        if images and not self.one:
            _check_whole(self._items)
        return [
            _value(item, images=True)
            if (record := _record(item)) is None
            else read_record(record, f"row {number}", None, advice=ASK)
            for number, item in enumerate(self._items, 1)
        ]

    def alike(self, tasks: Sequence[str]) -> list[list[str]]:
        """Return groups of tasks for which the rows are the same, since no record is read, or from the same columns."""
        if not any(_record(item) is not None for item in self._items):
            return [[*tasks]] if tasks else []
        groups: dict[Hashable, list[str]] = {}
        for task in tasks:
            columns = self._columns(task)
            made = None if columns.data is None else repr((columns.data.templates, columns.data.lists))
            key = (columns.own, columns.standard, made, kind_of(columns.certificate).per_word)
            groups.setdefault(key, []).append(task)
        return [*groups.values()]

    def _row(self, item: Any, number: int, task: str, mixed: bool) -> Row:
        record = None if type(item) is str else _record(item)
        if record is None:
            return item if type(item) is str else _value(item, images=kind_of(self._certificate(task)).reads_images)
        return read_record(record, f"row {number}", self._columns(task), advice=ASK, mixed=mixed)

    def _certificate(self, task: str) -> Certificate:
        return self._store.certificate(task)

    def _columns(self, task: str) -> TaskColumns:
        return TaskColumns.of(self._certificate(task), self._specs.get(task))

    @cached_property
    def _specs(self) -> Mapping[str, TaskSpec]:
        return {task.name: task for task in load_stream(self._store.stream_file, code=False).tasks}

    def _is_record(self, rows: Any) -> bool:
        """Return whether the argument is one record, or a mapping of columns."""
        if type(rows).__module__.split(".")[0] == "pandas":
            return getattr(rows, "ndim", 0) == 1 and hasattr(rows, "index") and self._is_row(rows)
        return _record(rows) is not None and type(rows).__module__.split(".")[0] != "datasets"

    def _is_row(self, series: Any) -> bool:
        """Return whether a Series is a row of a table, whose index names the columns, and not a column of rows.

        It is a row if a cell is a number, all its columns are known, or its name is the number of a row, as pandas sets it.

        Raises:
            InputError: if the index names the task's columns, but the values could as well be rows.
        """
        index, values = series.index.tolist(), series.tolist()
        if not self._names({*index}):
            return False
        known = {*UNNAMED, "text_pair", "label"} if not self._tasks else self._known(self._tasks[0])
        one = len({*index}) == len(index) and all(isinstance(name, str) for name in index)
        is_numbered = series.name is not None and not isinstance(series.name, str)
        if one and (is_numbered or {*index} <= known or not all(map(_may_be_row, values))):
            return True
        raise InputError(
            f"rows: got a Series of pandas of {len(values)} whose index has {self._names({*index})[0]!r}, which is a column "
            "of the task, so that it may be one row or several: give series.to_dict() for one row, or series.tolist() for "
            "several"
        )

    def _known(self, task: str) -> set[str]:
        """Return the columns that a task was learned from, and the standard ones."""
        columns, spec = self._columns(task), self._specs.get(task)
        read = () if spec is None else spec.columns.read_by(spec.kind).values()
        own = (name for column in (*columns.own, *read) if column is not None for name in names_of(column))
        return {*own, *columns.read, "label"}

    def _names(self, among: Any) -> tuple[str, ...]:
        """Return the columns that would be read among those given, the most important one first."""
        if not self._tasks:
            return tuple(name for name in UNNAMED if name in among)
        columns = self._columns(self._tasks[0])
        own = next((names for names in (columns.own, columns.standard) if names[0] in among), ())
        return own or tuple(name for name in columns.parts if name in among)

    def _as_columns(self, record: Record) -> list[Record] | None:
        """Return the rows of a mapping of columns; None if the mapping is a single row."""
        names = self._names(record)
        if not names or not _is_column_of_rows(record[names[0]], self._form(names[0])):
            return None
        if (other := next((name for name, cells in record.items() if not is_column(cells)), None)) is not None:
            raise InputError(
                f"rows: the column {names[0]!r} is a list of {len(rows_in(record[names[0]], 'rows'))}, but {other!r} is "
                f"{record[other]!r:.80}; give a list of rows, or a mapping in which every value is a list of cells"
            )
        rows = records_of(record, "rows")
        if self._form(names[0]) == "image":
            _check_whole([row[names[0]] for row in rows])
        return rows

    def _form(self, name: str) -> str:
        if not self._tasks:
            return name
        certificate, columns = self._certificate(self._tasks[0]), self._columns(self._tasks[0])
        if name in columns.parts and name not in (*columns.own, *columns.standard):
            return "tokens" if columns.parts[name] else "text"  # `{a.0}` reads a list in each row
        if certificate.chat is not None:
            return "messages"
        kind = kind_of(certificate)
        return kind.columns[0] if kind.per_word or kind.reads_images else "text"


def tasks_in(tasks: Any) -> list[str]:
    """Return the names of several tasks; raises `InputError` if they have no order, or are not names."""
    if isinstance(tasks, Mapping | Set) and not isinstance(tasks, KeysView):
        raise InputError(f"task: got a {type(tasks).__name__}; give the name of a task, or a list of names")
    if not isinstance(tasks, Iterable):
        raise InputError(f"task: got {tasks!r:.80}; give the name of a task, or a list of names")
    rows = rows_in(tasks, "task")
    if rows and isinstance(rows[0], Mapping):
        raise InputError(f"task: got a {type(tasks).__name__}, a table; give the name of a task, or a list of names")
    return [str(task) if isinstance(task, str) else task for task in rows]


def _record(item: Any) -> Record | None:
    """Return the record that an item is; None for an image, a message or any other value."""
    record = record_of(item)
    if record is None or is_message(record):
        return None
    image = bool(record) and {*record} <= {"bytes", "path"}
    return None if isinstance(item, Mapping) and image else record


def _is_column_of_rows(value: Any, form: str) -> bool:
    if not is_column(value):
        return False
    if form == "image" and isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return not _is_image(value)
    if form == "image" and len(_shape(value)) == 2:
        return False  # a list of lists of numbers is a grey image, since none of its lists is one
    if form in ("tokens", "messages"):
        part = str if form == "tokens" else Mapping
        return not all(isinstance(each, part) for each in rows_in(value, "rows"))
    return True


def _value(item: Any, *, images: bool) -> Any:
    """Return a row without the types of numpy and pandas, except for arrays that may be images."""
    if isinstance(item, str):
        return str(item)
    if isinstance(item, tuple):
        return tuple(_value(part, images=images) for part in item)
    if images and isinstance(item, np.ndarray) and item.dtype.kind in "biuf":
        return item
    return item if isinstance(item, list | Mapping) else plain(item)


def _may_be_row(value: Any) -> bool:
    """Return whether a value may be a row of some task: not a number, unless it is NaN, which stands for a missing value."""
    number = isinstance(value, bool | int | float | np.number | np.bool_)
    return not number or value != value


def _check_whole(items: Sequence[Any]) -> None:
    """Refuse the lines of one image, given as a list or an iterator of them, which could be read as several grey images.

    Raises:
        InputError: if all items are lines of an image in grey ``(width,)`` or in colour ``(width, 3)``.
    """
    shapes = [_shape(item) for item in items]
    if items and all(len(shape) == 1 or (len(shape) == 2 and shape[1] in (1, 3)) for shape in shapes):
        each = " x ".join(map(str, shapes[0]))
        several = "" if len(shapes[0]) == 1 else "; and several grey images of this shape as arrays (height, width, 3)"
        raise InputError(
            f"rows: got {len(items)} x {each} numbers, which may be one image, or {counted(len(items), 'row')} of {each}. "
            f"Give one image as an array of numpy, or in a list of its own: [image]{several}."
        )


def _shape(item: Any) -> tuple[int, ...]:
    """Return the shape of an array or of nested lists of numbers, judged by their first items; () for anything else."""
    if isinstance(item, np.ndarray):
        return item.shape if item.dtype.kind in "biuf" else ()
    if isinstance(item, list | tuple) and item:
        if isinstance(item[0], int | float | np.number):
            return (len(item),)
        below = _shape(item[0])
        return (len(item), *below) if below else ()
    return ()


def _is_image(array: np.ndarray[Any, Any]) -> bool:
    # (height, width) or (height, width, colours); no task uses several grey images with 1 or 3 columns.
    return array.ndim == 2 or (array.ndim == 3 and array.shape[-1] in (1, 3))


def _is_one(rows: Any, single: bool) -> bool:
    """Return whether an argument that is no record is a single row; raises `InputError` for a list of messages."""
    if isinstance(rows, list) and rows and all(map(is_message, rows)):
        if single:
            return True
        raise InputError(
            f"rows: got a list of {counted(len(rows), 'message')}, which is one conversation, but a list holds several rows: "
            "give [messages] for a list with this conversation, or {'messages': messages} for this single row"
        )
    if isinstance(rows, Mapping):
        return type(rows).__module__.split(".")[0] != "datasets"
    array = isinstance(rows, np.ndarray) and rows.dtype.kind in "biuf" and _is_image(rows)
    return array or isinstance(rows, str | bytes | os.PathLike | tuple) or type(rows).__module__.startswith("PIL.")
