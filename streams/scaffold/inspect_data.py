"""Inspect the rows of a data set: a file, a folder, a glob, or a data set on the Hub."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from glob import has_magic
from itertools import pairwise
from typing import Any

from continual_petl.errors import InputError, counted
from continual_petl.streams.reader.bounds import memory_reported
from continual_petl.streams.reader.records import reader_of
from continual_petl.streams.reader.wanted import LISTS, Wanted
from continual_petl.streams.reader.word_columns import looks_like_columns
from continual_petl.streams.schema.data_spec import SplitName, is_url, local_path, looks_like_path
from continual_petl.streams.schema.limits_spec import DEFAULTS, LimitsSpec
from continual_petl.streams.sources.conversations import is_message
from continual_petl.streams.sources.hub import by_split, class_names, columns_of, load_dataset, no_train, quiet
from continual_petl.streams.sources.local_files import ALIASES, find_files, read_table
from continual_petl.streams.sources.split_rows import named

NUM_ROWS = 10_000
"""Default number of rows to inspect, evenly spread, since a file may be sorted by its labels."""


@dataclass(frozen=True, kw_only=True)
class InspectedData:
    """Summary of one data set."""

    task: str
    """A name for its task."""
    data: str
    """The data argument as given by the user."""
    config: str | None = None
    """Configuration of a data set on the Hub."""
    on_hub: bool
    splits: tuple[str, ...]
    """Splits with labels."""
    hidden: tuple[str, ...] = ()
    """Splits whose labels are hidden (-1), as in the test sets of benchmarks."""
    table: Mapping[str, Sequence[Any]]
    """Inspected rows of the training split."""
    num_rows: int
    """Number of rows in the training split."""
    reader: str | None = None
    """The reader for its files, if they are on this machine."""
    files: Mapping[SplitName, Sequence[str]] = field(default_factory=dict)
    """The files of each split if their names do not say which reader is needed."""
    labels: str | None = None
    """A file with label names, if the folder has one."""
    limits: LimitsSpec = DEFAULTS
    """Size limits of files and cells."""

    @property
    def rows(self) -> str:
        """Describe which rows were inspected."""
        looked = max((len(values) for values in self.table.values()), default=0)
        return counted(looked, "row") if looked == self.num_rows else f"{looked:,} of {counted(self.num_rows, 'row')}"


def inspect_data(data: str, limits: LimitsSpec = DEFAULTS, max_rows: int = NUM_ROWS) -> InspectedData:
    """Inspect a file, a folder, a glob, or a data set on the Hub.

    Args:
        data: the data to inspect.
        limits: maximum sizes of files and cells.
        max_rows: maximum number of rows to inspect.

    Raises:
        InputError: if the data does not exist or cannot be read.
    """
    if is_url(data):
        raise InputError(f"{data}: URLs are not supported; download the file, and give its path")
    local = os.path.exists(data) or has_magic(data) or looks_like_path(data) or reader_of(data) is not None
    with memory_reported(data):
        return _local(data, limits, max_rows) if local else _hub(data, limits, max_rows)


def name_of(data: str) -> str:
    """Return a name for a task: the name of the folder, or of the file without suffixes."""
    stem = os.path.basename(os.path.normpath(data)).split(".")[0]
    if stem.lower() in ALIASES or not stem.strip("*?[]"):
        stem = os.path.basename(os.path.dirname(os.path.abspath(data))) or stem
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")
    return name[:64] or "task"


def _local(data: str, limits: LimitsSpec, max_rows: int) -> InspectedData:
    name = name_of(data)
    path = local_path(data)
    alone = os.path.isfile(path) and reader_of(path) is None and looks_like_columns(path)
    files: Mapping[SplitName, list[str]] = {"train": [path]} if alone else find_files(name, path)
    first = "train" if "train" in files else next(iter(files))
    reader = reader_of(files[first][0])
    in_columns = alone or (reader == "text" and looks_like_columns(files[first][0], tagged=False))
    reader = "conll" if in_columns else reader
    assert reader is not None
    whole = read_table(name, files[first], Wanted(), limits, "conll" if in_columns else None)
    if reader == "json" and (lists := _list_columns(whole, len(files[first]))) != LISTS:
        whole = read_table(name, files[first], Wanted(lists=lists), limits)
    num_rows = max(map(len, whole.values()), default=0)
    if not num_rows:
        raise InputError(f"{', '.join(files[first])}: there are no rows; give files with rows")
    table = {column: [values[row] for row in _spread(num_rows, max_rows)] for column, values in whole.items()}
    beside = os.path.join(local_path(data), "labels.json")
    labels = os.path.join(data, "labels.json") if os.path.isfile(beside) else None
    return InspectedData(
        task=name,
        data=data,
        on_hub=False,
        splits=tuple(files),
        table=table,
        num_rows=num_rows,
        reader=reader,
        files=files if in_columns else {},
        labels=labels,
        limits=limits,
    )


def _list_columns(table: Mapping[str, Sequence[Any]], num_files: int) -> Set[str]:
    """Return the columns that hold a list in each row for the task that is drafted: a list of words or of messages.

    Args:
        table: files of JSON, read with `LISTS`, by which an object of columns may be one row, or a conversation several.
        num_files: their number.
    """
    entries: dict[str, Callable[[Any], bool]] = {
        "tokens": lambda entry: isinstance(entry, str),
        "messages": is_message,
    }
    other = {
        name
        for name, holds in entries.items()
        if len(table.get(name, ())) in range(1, num_files + 1)
        and not all(holds(entry) for cell in table[name] if isinstance(cell, list) for entry in cell)
    }
    talks = {name for name, cells in table.items() if all(map(is_message, cells))}
    return (LISTS - other) | (talks if len(talks) == 1 else set())


def _spread(num_rows: int, max_rows: int) -> Sequence[int]:
    """Return the indices of the rows to inspect: a random one from each of ``max_rows`` ranges of equal length.

    With a constant step, alternating labels could look like a single label.
    """
    if num_rows <= max_rows:
        return range(num_rows)
    draw = random.Random(0)
    ends = [number * num_rows // max_rows for number in range(max_rows + 1)]
    return [draw.randrange(start, end) for start, end in pairwise(ends)]


def _hub(data: str, limits: LimitsSpec, max_rows: int) -> InspectedData:
    path, _, config = data.partition(":")

    def cannot(why: str) -> str:
        return (
            f"{data}: there is no such file or folder in {os.getcwd()}, and no data set of this name can be loaded from "
            f"the Hub ({why}). Check the path, or the name and the "
            "network (HF_HUB_OFFLINE allows only cached data). The configuration of a data set is written after "
            "a colon, as in nyu-mll/glue:sst2. Without a network, give a folder with the files."
        )

    with quiet():
        loaded = load_dataset(data, path, config or None, cannot)
    splits = by_split(loaded)
    if "train" not in splits:
        raise no_train(data, loaded)
    train = splits["train"]
    table = columns_of(train.select(_spread(len(train), max_rows)), data, limits)
    for column, feature in train.features.items():
        if (names := class_names(feature)) is not None:
            table[column] = [named(value, names) for value in table[column]]
    return InspectedData(
        task=name_of(config or path),
        data=path,
        config=config or None,
        on_hub=True,
        splits=tuple(name for name, rows in splits.items() if not _is_hidden(rows)),
        hidden=tuple(name for name, rows in splits.items() if _is_hidden(rows)),
        table=table,
        num_rows=len(train),
        limits=limits,
    )


def _is_hidden(rows: Any) -> bool:
    labels = [name for name, feature in rows.features.items() if type(feature).__name__ == "ClassLabel"]
    return any(len(rows) > 0 and set(rows[name]) == {-1} for name in labels)
