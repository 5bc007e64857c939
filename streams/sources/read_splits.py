"""Read the rows of a task from any source: files, the Hub, the stream file itself, or a built-in data set.

Data sets on the Hub are read by ``datasets``; every source returns :class:`~.split_rows.SplitRows`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, cast

from continual_petl.errors import InputError
from continual_petl.streams.reader.records import reader_of
from continual_petl.streams.schema.data_spec import READERS, is_url, local_path
from continual_petl.streams.schema.limits_spec import DEFAULTS, LimitsSpec
from continual_petl.streams.schema.stream_spec import SPLITS, ColumnsSpec, DataSpec, Rows, SplitName
from continual_petl.streams.sources.checks import Where
from continual_petl.streams.sources.hub import from_hub
from continual_petl.streams.sources.hub_copies import Taken, check_copy, labels_file, taker
from continual_petl.streams.sources.local_files import expand, find_files, read_table
from continual_petl.streams.sources.split_rows import Columns, SplitRows, pick
from continual_petl.streams.sources.templates import Table, fill_templates, needed


def read_splits(
    task: str,
    data: str | DataSpec | Rows,
    columns: ColumnsSpec,
    splits: Sequence[SplitName] = SPLITS,
    *,
    kind: str = "classification",
    limits: LimitsSpec = DEFAULTS,
) -> dict[SplitName, SplitRows]:
    """Read the splits of a task.

    Args:
        task: name of the task, for messages.
        data: a path, arguments of ``datasets.load_dataset``, or rows; paths are relative to the working directory, and a
            local copy is read if there is one.
        columns: the names of the columns.
        splits: which splits to read, if they exist.
        kind: the kind of the task, which determines which columns are read.
        limits: maximum sizes of files and cells.

    Returns:
        The splits that exist, in the order train, validation, test.

    Raises:
        InputError: if the data, a column or the training split is missing, or something cannot be read.
    """
    read = columns.read_by(kind)

    templates = data.templates if isinstance(data, DataSpec) else None

    def take(where: Where, table: Table) -> SplitRows:
        return pick(where, fill_templates(where, table, templates), read, None, templates=templates)

    source = Taken(take, needed(read, templates))
    if isinstance(data, str):
        return _from_path(task, data, source, splits, None, limits)
    if isinstance(data, Mapping):
        return _from_rows(task, data, "rows given in the task", read, splits)
    if data.path == "embedded":
        embedded = importlib.import_module(
            "continual_petl.streams.embedded"
        )  # building the data parses Python sources, so it is only imported if needed
        try:
            rows = embedded.load(data.name)
        except InputError as error:
            raise InputError(f"task {task!r}, data: {error}") from error
        return _from_rows(task, rows, f"embedded {data.name}", read, splits)
    if data.local is not None:
        path = check_copy(task, data)
        return _from_path(task, path, taker(data, columns, kind, labels_file(task, path, kind)), splits, None, limits)
    if not data.is_local:
        return from_hub(task, data, read, splits, limits)
    if data.data_files is None:
        return _from_path(task, data.data_dir or data.path, source, splits, data, limits)
    return _from_data_files(task, data, source, splits, limits)


def _from_path(
    task: str, path: str, source: Taken, splits: Sequence[SplitName], spec: DataSpec | None, limits: LimitsSpec
) -> dict[SplitName, SplitRows]:
    files = {"train": [path]} if is_url(path) else find_files(task, local_path(path))
    files = cast("dict[SplitName, list[str]]", files)
    by_reader: dict[str | None, dict[SplitName, list[str]]] = {}
    for split, names in files.items():
        by_reader.setdefault(reader_of(names[0]), {})[split] = names
    if spec is not None and spec.path in READERS and set(by_reader) != {spec.path}:
        raise InputError(
            f"task {task!r}, data: got path {spec.path}, but {path} holds files for {', '.join(map(str, by_reader))}; "
            "write data: FOLDER to choose the reader by file name, or list the files under data.data_files."
        )
    if len(by_reader) > 1 and spec is not None and spec.split is not None:
        raise InputError(f"task {task!r}, data.split: {path} holds files of several formats; use files of one format.")
    found: dict[SplitName, SplitRows] = {}
    for reader, group in by_reader.items():
        if reader is None:
            raise InputError(f"task {task!r}, data {path}: name a reader: data: {{path: csv, data_files: {path}}}.")
        found |= _from_files(task, reader, group, source, splits, None if spec is None else spec.split, limits)
    return _checked(task, path, found, splits)


def _from_data_files(
    task: str, data: DataSpec, source: Taken, splits: Sequence[SplitName], limits: LimitsSpec
) -> dict[SplitName, SplitRows]:
    if data.data_dir is not None or data.path not in READERS:
        raise InputError(
            f"task {task!r}, data: got path {data.path} and data_dir {data.data_dir} together with data_files; with "
            "data_files, path is a reader (csv, json, parquet, arrow, text) and data_dir must be left out."
        )
    given = data.data_files
    assert given is not None
    files: dict[SplitName, list[str]]
    if isinstance(given, Mapping):
        files = {split: expand(task, given[split]) for split in SPLITS if split in given}
    else:
        files = {"train": expand(task, given)}
    found = _from_files(task, data.path, files, source, splits, data.split, limits)
    return _checked(task, ", ".join(name for names in files.values() for name in names), found, splits)


def _from_files(
    task: str,
    reader: str,
    files: Mapping[SplitName, Sequence[str]],
    source: Taken,
    splits: Sequence[SplitName],
    expressions: Mapping[SplitName, str] | None,
    limits: LimitsSpec,
) -> dict[SplitName, SplitRows]:
    def read(name: SplitName) -> Table:
        return read_table(task, reader, files[name], source.columns, limits)

    found = {}
    if not expressions:
        for split in (split for split in SPLITS if split in files and split in splits):
            where = Where(task=task, split=split, origin=", ".join(files[split]))
            found[split] = source.take(where, read(split))
        return found
    read_once = cache(read)
    for split in (split for split in SPLITS if split in expressions and split in splits):
        where = Where(task=task, split=split, origin=expressions[split])
        found[split] = source.take(where, _part(where, files, read_once))
    return found


def _part(where: Where, files: Mapping[SplitName, Sequence[str]], read: Callable[[SplitName], Table]) -> Table:
    """Return the rows that an expression such as ``train[:80%]+test`` selects; `datasets` defines what it means."""
    expression = where.origin
    if expression in files:
        return read(cast(SplitName, expression))
    import datasets  # type: ignore[import-untyped]  # import takes seconds

    named = {part.partition("[")[0].strip() for part in expression.split("+")}
    tables = {name: read(name) for name in files if name in named or not named <= files.keys()}
    lengths = {name: max(map(len, table.values()), default=0) for name, table in tables.items()}
    try:
        parts = datasets.ReadInstruction.from_spec(expression).to_absolute(lengths)
    except (ValueError, AssertionError) as error:
        paths = ", ".join(path for name in tables for path in files[name])
        why = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"task {where.task!r}, split {where.split}: cannot read {expression!r} of {paths}: {why}."
        ) from error
    columns = dict.fromkeys(name for part in parts for name in tables[part.splitname])
    return {
        name: [
            cell
            for part in parts
            for cell in tables[part.splitname].get(name, [None] * lengths[part.splitname])[part.from_ : part.to]
        ]
        for name in columns
    }


def _from_rows(
    task: str,
    data: Mapping[SplitName, Sequence[Mapping[str, Any]]],
    origin: str,
    columns: Columns,
    splits: Sequence[SplitName],
) -> dict[SplitName, SplitRows]:
    found: dict[SplitName, SplitRows] = {}
    for split in SPLITS:
        if split in data and split in splits:
            names = dict.fromkeys(name for row in data[split] for name in row)
            table = {name: [row.get(name) for row in data[split]] for name in names}
            where = Where(task=task, split=split, origin=origin)
            if table:
                found[split] = pick(where, table, columns, None)
            else:
                found[split] = SplitRows(where=where, inputs=[], pairs=None, answers=[], class_names=None)
    return _checked(task, origin, found, splits)


def _checked(
    task: str, origin: str, found: dict[SplitName, SplitRows], splits: Sequence[SplitName]
) -> dict[SplitName, SplitRows]:
    if "train" in splits and "train" not in found:
        raise InputError(
            f"task {task!r}, data {origin}: there is no training split; found {', '.join(found) or 'no split at all'}. "
            "Add train rows."
        )
    return {split: found[split] for split in SPLITS if split in found}
