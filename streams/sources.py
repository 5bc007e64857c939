"""The rows of a task, wherever they are: files, the Hub, the stream file itself, or a built-in data set.

All sources end in the same shape, :class:`SplitRows`: plain columns of Python values for each split, before any check
of what is in them. Files and the Hub are read by ``datasets``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import datasets  # type: ignore[import-untyped]

from continual_petl.errors import InputError
from continual_petl.heads.kinds import Kind
from continual_petl.streams._data_spec import READERS
from continual_petl.streams._plain_values import columns_of
from continual_petl.streams.checks import Where
from continual_petl.streams.files import ALIASES, expand, find_files, read_files, reader_of
from continual_petl.streams.schema import SPLITS, ColumnsSpec, DataSpec, Rows, SplitName

_Columns = Mapping[str, str | None]
"""The keys of ``columns`` that the task reads, with the names of the columns; the last is the answer's."""
_HUB_ERRORS = (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError, LookupError)


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitRows:
    """One split as it was read."""

    where: Where
    """Task, split and origin, for messages."""
    inputs: list[Any]
    """What goes in with every row: the ``columns.text``, ``source``, ``tokens`` or ``image``."""
    pairs: list[Any] | None
    """The ``columns.text_pair`` of every row, where there is one."""
    answers: list[Any]
    """The ``columns.label``, ``target`` or ``tags`` of every row; class numbers of a Hub data set are already names."""
    class_names: tuple[str, ...] | None
    """The classes in order, where the data set itself declares them."""

    def __len__(self) -> int:
        return len(self.inputs)


def read_splits(
    task: str,
    data: str | DataSpec | Rows,
    columns: ColumnsSpec,
    splits: Sequence[SplitName] = SPLITS,
    *,
    kind: Kind = "classification",
) -> dict[SplitName, SplitRows]:
    """Read the splits of a task.

    Args:
        task: name of the task, for messages.
        data: a path, what ``datasets.load_dataset`` takes, or rows; relative paths count from the working directory.
        columns: which columns mean what.
        splits: which splits to read, if they exist.
        kind: the kind of the task, which decides what columns are read.

    Returns:
        The splits that exist, in the order train, validation, test.

    Raises:
        InputError: if the data, a column or the training split is missing, or something cannot be read.
    """
    read = columns.read_by(kind)
    if isinstance(data, str):
        return _from_path(task, data, read, splits, None)
    if isinstance(data, Mapping):
        return _from_rows(task, data, "rows given in the task", read, splits)
    if data.path == "embedded":
        embedded = importlib.import_module("continual_petl.streams.embedded")  # parses sources: only when asked for
        try:
            rows = embedded.load(data.name)
        except InputError as error:
            raise InputError(f"task {task!r}, data: {error}") from error
        return _from_rows(task, rows, f"embedded {data.name}", read, splits)
    if not data.is_local:
        return _from_hub(task, data, read, splits)
    if data.data_files is None:
        return _from_path(task, data.data_dir or data.path, read, splits, data)
    return _from_data_files(task, data, read, splits)


def _from_path(
    task: str, path: str, columns: _Columns, splits: Sequence[SplitName], spec: DataSpec | None
) -> dict[SplitName, SplitRows]:
    files = {"train": [path]} if "://" in path else find_files(task, os.path.expanduser(path))
    files = cast("dict[SplitName, list[str]]", files)
    by_reader: dict[str | None, dict[SplitName, list[str]]] = {}
    for split, names in files.items():
        by_reader.setdefault(reader_of(names[0]), {})[split] = names
    if spec is not None and spec.path in READERS and set(by_reader) != {spec.path}:
        raise InputError(
            f"task {task!r}, data: got path {spec.path}, but {path} holds files for {', '.join(map(str, by_reader))}; "
            "write data: FOLDER and let the names decide, or list the files under data.data_files."
        )
    if len(by_reader) > 1 and spec is not None and spec.split is not None:
        raise InputError(f"task {task!r}, data.split: {path} holds files of several formats; use files of one format.")
    found: dict[SplitName, SplitRows] = {}
    for reader, group in by_reader.items():
        if reader is None:
            raise InputError(f"task {task!r}, data {path}: name a reader: data: {{path: csv, data_files: {path}}}.")
        found |= _from_files(task, reader, group, columns, splits, None if spec is None else spec.split)
    return _checked(task, path, found, splits)


def _from_data_files(
    task: str, data: DataSpec, columns: _Columns, splits: Sequence[SplitName]
) -> dict[SplitName, SplitRows]:
    if data.data_dir is not None or data.path not in READERS:
        raise InputError(
            f"task {task!r}, data: got path {data.path} and data_dir {data.data_dir} together with data_files; with "
            "data_files, path is a reader (csv, json, parquet, arrow, text) and data_dir stays away."
        )
    given = data.data_files
    assert given is not None
    files: dict[SplitName, list[str]]
    if isinstance(given, Mapping):
        files = {split: expand(task, given[split]) for split in SPLITS if split in given}
    else:
        files = {"train": expand(task, given)}
    found = _from_files(task, data.path, files, columns, splits, data.split)
    return _checked(task, ", ".join(name for names in files.values() for name in names), found, splits)


def _from_files(
    task: str,
    reader: str,
    files: Mapping[SplitName, Sequence[str]],
    columns: _Columns,
    splits: Sequence[SplitName],
    expressions: Mapping[SplitName, str] | None,
) -> dict[SplitName, SplitRows]:
    chosen = expressions or {split: split for split in files}
    wanted = {split: chosen[split] for split in SPLITS if split in chosen and split in splits}
    if not wanted:
        return {}
    if not expressions:
        files = {split: files[split] for split in wanted}
    found = {}
    for split, table in read_files(task, reader, files, wanted).items():
        origin = chosen[split] if expressions else ", ".join(files[split])
        found[split] = _pick(Where(task=task, split=split, origin=origin), table, columns, None)
    return found


def _from_rows(
    task: str,
    data: Mapping[SplitName, Sequence[Mapping[str, Any]]],
    origin: str,
    columns: _Columns,
    splits: Sequence[SplitName],
) -> dict[SplitName, SplitRows]:
    found: dict[SplitName, SplitRows] = {}
    for split in SPLITS:
        if split in data and split in splits:
            names = dict.fromkeys(name for row in data[split] for name in row)
            table = {name: [row.get(name) for row in data[split]] for name in names}
            where = Where(task=task, split=split, origin=origin)
            if table:
                found[split] = _pick(where, table, columns, None)
            else:
                found[split] = SplitRows(where=where, inputs=[], pairs=None, answers=[], class_names=None)
    return _checked(task, origin, found, splits)


def _from_hub(task: str, data: DataSpec, columns: _Columns, splits: Sequence[SplitName]) -> dict[SplitName, SplitRows]:
    loaded: dict[SplitName, datasets.Dataset] = {}

    def load(expression: str | None) -> Any:
        files: Any = data.model_dump(mode="json")["data_files"]  # lists for tuples
        return datasets.load_dataset(
            data.path, data.name, revision=data.revision, data_files=files, data_dir=data.data_dir, split=expression
        )

    try:
        if data.split is not None:
            loaded = {split: load(data.split[split]) for split in SPLITS if split in data.split and split in splits}
            there = list(loaded)
        else:
            everything = load(None)
            there = list(everything)
            for name in there:
                split = ALIASES.get(name)
                if split in splits and split is not None:
                    loaded.setdefault(split, everything[name])
    except _HUB_ERRORS as error:
        config = f" (configuration {data.name})" if data.name else ""
        raise InputError(
            f"task {task!r}, data: cannot load {data.path!r}{config} from the Hub: {type(error).__name__}: {error}. "
            "Check the name and "
            "the network (HF_HUB_OFFLINE allows cached data only); offline, put the files into a folder and write "
            "data: FOLDER. For "
            f"local data that is not on the Hub, begin the path with ./ (./{data.path})."
        ) from error
    found = {}
    for split, dataset in loaded.items():
        names = _class_names(dataset.features.get([*columns.values()][-1]))
        table = columns_of(dataset)
        found[split] = _pick(Where(task=task, split=split, origin=f"Hub {data.path}"), table, columns, names)
    if "train" in splits and "train" not in found:
        raise InputError(
            f"task {task!r}, data {data.path}: there is no split named train; it has {', '.join(there)}. Say which "
            "rows are "
            'which: data: {path: ..., split: {train: "...", test: "..."}}.'
        )
    return found


def _pick(
    where: Where, table: Mapping[str, list[Any]], columns: _Columns, class_names: tuple[str, ...] | None
) -> SplitRows:
    for key, name in columns.items():
        if name is not None and name not in table:
            raise InputError(
                f"{where}: columns.{key} is {name!r}, but there is no such column; there are "
                f"{', '.join(map(repr, table))}. Name the "
                f"right one: columns: {{{key}: ...}}."
            )
    names = [*columns.values()]
    inputs, answers = table[str(names[0])], table[str(names[-1])]
    if class_names is not None:
        answers = [_named(answer, class_names) for answer in answers]
    pair = columns.get("text_pair")
    return SplitRows(
        where=where,
        inputs=inputs,
        pairs=None if pair is None else table[pair],
        answers=answers,
        class_names=class_names,
    )


def _class_names(feature: Any) -> tuple[str, ...] | None:
    """Return the names that a data set declares for its labels, also where a row has a list of them."""
    while not isinstance(feature, datasets.ClassLabel) and hasattr(feature, "feature"):
        feature = feature.feature
    return tuple(feature.names) if isinstance(feature, datasets.ClassLabel) else None


def _named(answer: Any, names: tuple[str, ...]) -> Any:
    if isinstance(answer, list):
        return [_named(entry, names) for entry in answer]
    # A Hub test split with hidden labels says -1, which becomes a missing label.
    return None if answer is None or answer < 0 else names[answer]


def _checked(
    task: str, origin: str, found: dict[SplitName, SplitRows], splits: Sequence[SplitName]
) -> dict[SplitName, SplitRows]:
    if "train" in splits and "train" not in found:
        raise InputError(
            f"task {task!r}, data {origin}: there is no training split; found {', '.join(found) or 'no split at all'}. "
            "Add train rows."
        )
    return {split: found[split] for split in SPLITS if split in found}
