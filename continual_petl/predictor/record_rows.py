"""Rows from records (the rows of a table, by column): by the columns of their task, or without a task by standard columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from continual_petl.errors import InputError
from continual_petl.kind import MAX_OPTIONS, kind_of, kinds
from continual_petl.predictor.one_or_many import Row
from continual_petl.predictor.records import Record
from continual_petl.predictor.task_columns import TaskColumns
from continual_petl.streams.schema.containers import plain
from continual_petl.streams.sources.conversations import conversation, from_cell, messages_of
from continual_petl.streams.sources.row_options import options_fault, options_of

UNNAMED = ("text", "source", "tokens", "image", "messages")
"""The columns that rows without a task are read from."""
_BESIDE = {"text_pair": ("text",), "options": ("source", "messages")}
"""The columns that are read in addition, and beside which ones."""


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
    if task.manifest.options_from == "row":
        value = record[names[-1]] if in_table else plain(record[names[-1]])
        options = options_of(value) if in_table or not isinstance(value, str) else None
        if options_fault(value, options) is not None:
            raise task.unusable(where, names[-1], value)
        return _source(record, where, task, names[:-1], in_table, images), options
    return _source(record, where, task, names, in_table, images)


def _source(record: Record, where: str, task: TaskColumns, names: Sequence[str], in_table: bool, images: bool) -> Row:
    if kind_of(task.manifest).per_word:
        words = words_in(plain(record[names[0]]), in_table=in_table)
        if (
            not isinstance(words, list)
            or not words
            or not all(isinstance(word, str) and word.strip() for word in words)
        ):
            raise task.unusable(where, names[0], words)
        return words
    if task.manifest.chat is not None:
        row = messages_in(plain(record[names[0]]), in_table=in_table)
        try:
            conversation(messages_of(row), task.manifest.chat.system, ends="user")
        except ValueError as error:
            raise InputError(f"{task.unusable(where, names[0], row)} What is wrong: {error}.") from error
        return row
    for name in names:
        image = images and kind_of(task.manifest).reads_images and not isinstance(record[name], str | None)
        if not image and (not isinstance(record[name], str) or not record[name].strip()):
            raise task.unusable(where, name, record[name])
    return (record[names[0]], record[names[1]]) if task.manifest.pair else record[names[0]]


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
