"""Read the rows of a task from any source: files, the Hub, the stream file itself, or a built-in data set.

Data sets on the Hub are read by ``datasets``; every source returns :class:`~.split_rows.SplitRows`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

from continual_petl.errors import InputError
from continual_petl.streams.reader.bounds import memory_reported
from continual_petl.streams.reader.records import reader_of
from continual_petl.streams.reader.wanted import Wanted
from continual_petl.streams.schema.data_spec import READERS, is_url, local_path
from continual_petl.streams.schema.limits_spec import DEFAULTS, LimitsSpec
from continual_petl.streams.schema.stream_spec import SPLITS, ColumnsSpec, DataSpec, Rows, SplitName
from continual_petl.streams.sources.checks import Where
from continual_petl.streams.sources.hub import check_shares, from_hub
from continual_petl.streams.sources.hub_copies import check_copy, labels_file, taker, wanted_of
from continual_petl.streams.sources.local_files import expand, find_files, read_table
from continual_petl.streams.sources.row_ids import ID_COLUMNS, FilesRead
from continual_petl.streams.sources.split_rows import Columns, SplitRows, pick
from continual_petl.streams.sources.templates import Table


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
    spec = data if isinstance(data, DataSpec) else None
    files = _Files(task, lambda where, table: pick(where, table, read, spec), wanted_of(spec, read), splits, limits)
    if isinstance(data, str):
        return files.of_path(data)
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
        take, wanted = taker(data, columns, kind, labels_file(task, path, kind))
        return replace(files, take=take, wanted=wanted).of_path(path)
    if not data.is_local:
        with memory_reported(f"task {task!r}, data {data.path}"):
            return from_hub(task, data, read, splits, limits)
    return files.of_path(data.data_dir or data.path, data) if data.data_files is None else files.named(data)


@dataclass(frozen=True)
class _Files:
    """The files of a task, to be read."""

    task: str
    take: Callable[[Where, Table], SplitRows]
    """Converts the table of a split to rows."""
    wanted: Wanted
    splits: Sequence[SplitName]
    limits: LimitsSpec

    def of_path(self, path: str, spec: DataSpec | None = None) -> dict[SplitName, SplitRows]:
        """Read the files that a path means; ``spec`` may name their reader and choose parts of the splits."""
        found = {"train": [path]} if is_url(path) else find_files(self.task, local_path(path))
        files = cast("dict[SplitName, list[str]]", found)
        readers = {reader_of(name): None for names in files.values() for name in names}
        tagged = spec is not None and spec.path == "conll"  # then text files have words in columns too
        readers = {"conll" if tagged and reader == "text" else reader: None for reader in readers}
        if spec is not None and spec.path in READERS and {*readers} != {spec.path}:
            raise InputError(
                f"task {self.task!r}, data: got path {spec.path}, but {path} holds files for "
                f"{', '.join(map(str, readers))}; "
                "write data: FOLDER to choose the reader by file name, or list the files under data.data_files."
            )
        if None in readers:
            raise InputError(
                f"task {self.task!r}, data {path}: name a reader: data: {{path: csv, data_files: {path}}}."
            )
        return _checked(self.task, path, self._read(files, spec, "conll" if tagged else None), self.splits)

    def named(self, data: DataSpec) -> dict[SplitName, SplitRows]:
        """Read the files that are listed under ``data_files``, all with one reader."""
        if data.data_dir is not None or data.path not in READERS:
            raise InputError(
                f"task {self.task!r}, data: got path {data.path} and data_dir {data.data_dir} together with data_files; with "
                f"data_files, path is a reader ({', '.join(READERS)}) and data_dir must be left out."
            )
        given = data.data_files
        assert given is not None
        by_split = given if isinstance(given, Mapping) else {"train": given}
        files: dict[SplitName, list[str]] = {
            split: expand(self.task, by_split[split]) for split in SPLITS if split in by_split
        }
        found = self._read(files, data, data.path)
        return _checked(self.task, ", ".join(name for names in files.values() for name in names), found, self.splits)

    def _read(
        self, files: Mapping[SplitName, Sequence[str]], spec: DataSpec | None, reader: str | None = None
    ) -> dict[SplitName, SplitRows]:
        def read(name: SplitName) -> tuple[tuple[FilesRead, ...], Table]:
            as_read = FilesRead.of(files[name], reader, self.wanted.lists)
            return () if as_read is None else (as_read,), read_table(
                self.task, files[name], self.wanted, self.limits, reader
            )

        found, expressions, read_once = {}, None if spec is None else spec.split, cache(read)
        for split in (split for split in SPLITS if split in (expressions or files) and split in self.splits):
            origin = expressions[split] if expressions else ", ".join(files[split])
            where = Where(task=self.task, split=split, origin=origin)
            as_read, table = _part(where, files, read_once) if expressions else read(split)
            found[split] = self.take(replace(where, files=as_read), table)
        return found


def _part(
    where: Where,
    files: Mapping[SplitName, Sequence[str]],
    read: Callable[[SplitName], tuple[tuple[FilesRead, ...], Table]],
) -> tuple[tuple[FilesRead, ...], Table]:
    """Return the files and rows that an expression such as ``train[:80%]+test`` selects; `datasets` defines what it means."""
    expression = where.origin
    if expression in files:
        return read(cast(SplitName, expression))
    import datasets  # import takes seconds

    named = {part.partition("[")[0].strip() for part in expression.split("+")}
    found = {name: read(name) for name in files if name in named or not named <= files.keys()}
    tables = {name: table for name, (_, table) in found.items()}
    lengths = {name: max(map(len, table.values()), default=0) for name, table in tables.items()}
    try:
        check_shares(expression, lengths)
        parts = datasets.ReadInstruction.from_spec(expression).to_absolute(lengths)
    except (ValueError, AssertionError) as error:
        paths = ", ".join(path for name in tables for path in files[name])
        why = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"task {where.task!r}, split {where.split}: cannot read {expression!r} of {paths}: {why}."
        ) from error
    columns = dict.fromkeys(name for part in parts for name in tables[part.splitname])
    chosen = [files._replace(rows=range(part.from_, part.to)) for part in parts for files in found[part.splitname][0]]
    return tuple(chosen) if len(chosen) == len(parts) else (), {
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
            ids = {name: table[name] for name in table if name in ID_COLUMNS}
            found[split] = pick(Where(task=task, split=split, origin=origin, ids=ids), table, columns)
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
