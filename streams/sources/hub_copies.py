"""Local copies of data sets from the Hub, for machines without a network: read from the data_dir of a stream.

A copy has either all columns of the Hub's data set, or all default columns of the task's kind (``text``, ``label``, ...).
If there is a ``labels.json`` next to its files, numeric labels are positions in that list of names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from continual_petl.errors import InputError
from continual_petl.kind_registry import find_kind
from continual_petl.streams.reader.wanted import Wanted, list_columns
from continual_petl.streams.schema.data_spec import local_path
from continual_petl.streams.schema.option_columns import is_there
from continual_petl.streams.schema.stream_spec import ColumnsSpec, DataSpec
from continual_petl.streams.sources.checks import Where, nearest_to
from continual_petl.streams.sources.local_files import matching
from continual_petl.streams.sources.split_rows import Columns, SplitRows, pick
from continual_petl.streams.sources.templates import Table, has_fields, needed


def wanted_of(data: DataSpec | None, *columns: Columns) -> Wanted:
    """Return what is read of files for some choices of columns, by their keys, with the templates and lists of ``data``."""
    templates, written = (None, ()) if data is None else (data.templates, data.lists or ())
    lists = frozenset[str]().union(*(list_columns(read, written) for read in columns))
    return Wanted(frozenset(written).union(*(needed(read, templates) for read in columns)), lists)


LABELS_FILE = "labels.json"
"""File with the class names of a copy in the order of their numbers: a list, or a mapping with a list under ``names``."""


def check_copy(task: str, data: DataSpec) -> str:
    """Return the path of the local copy of ``data``.

    Raises:
        InputError: if there is no copy; the message says what was found instead, and what to do.
    """
    assert data.local is not None
    path = local_path(data.local)
    if matching(path):
        return path
    raise InputError(
        f"task {task!r}, data.local: there is no {path}, but the stream has a data_dir, so this task has to be "
        f"read from a copy; {nearest_to(path)}. Put a folder with train, validation and test files there, "
        f"name another copy (--tasks.{task}.data.local NAME), or read this task from {data.path} on the Hub "
        f"(--tasks.{task}.data.local null)."
    )


def labels_file(task: str, path: str, kind: str) -> str | None:
    """Return the file that names the classes of the copy at ``path``, if it has one and the kind has classes.

    Raises:
        InputError: if the copy is a set of files rather than a folder, and it is unclear whether the class-name file
            next to it belongs to it.
    """
    if not find_kind(kind).has_labels:
        return None
    file = os.path.join(path, LABELS_FILE)
    if os.path.isfile(file):
        return file
    beside = os.path.join(os.path.dirname(path), LABELS_FILE)
    if not os.path.isdir(path) and os.path.isfile(beside):
        raise InputError(
            f"task {task!r}, data.local: {beside} is in the same folder as {path}, and it is unclear whether it names "
            "the classes of this copy. Give the folder as the copy, with files named after their splits, or move that file "
            "away and list the classes under labels."
        )
    return None


def taker(
    data: DataSpec, columns: ColumnsSpec, kind: str, names: str | None
) -> tuple[Callable[[Where, Table], SplitRows], Wanted]:
    """Return a function that converts a copy's table to rows, from the Hub's columns if all exist, else the default ones; and
    what it needs of the files.
    """
    hub = columns.read_by(kind)
    usual = ColumnsSpec(
        label="label" if isinstance(columns.label, str) else columns.label,  # one column cannot stand for several
        text_pair=None if columns.text_pair is None else "text_pair",
        messages=None if columns.messages is None else "messages",
        options=None if columns.options is None else "options",
    ).read_by(kind)
    made: Mapping[str, str] = data.templates or {}

    def take(where: Where, table: Table) -> SplitRows:
        as_on_hub = has_fields(table, made) and _are_there(table, hub, made)
        if not as_on_hub and not _are_there(table, usual, ()):
            wanted = " or ".join(sorted({_listed(_read(hub, made)), _listed([*filter(None, usual.values())])}))
            raise InputError(
                f"{where}: a local copy of {data.path} has the columns {wanted}; this one has "
                f"{', '.join(map(repr, table))}. Rename them, or give their meaning: write this task with data: FOLDER and "
                "columns."
            )
        columns, made_by = (hub, data) if as_on_hub else (usual, None)
        return pick(where, table, columns, made_by, labels_file=names)

    return take, wanted_of(data, hub, usual)


def _are_there(table: Table, columns: Columns, made: Mapping[str, str] | Sequence[str]) -> bool:
    return all(name is None or is_there(name, table) or name in made for name in columns.values())


def _read(columns: Columns, made: Mapping[str, str]) -> list[str]:
    from_templates = [text for name, text in made.items() if name in columns.values()]
    return [*from_templates, *(name for name in columns.values() if name is not None and name not in made)]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
