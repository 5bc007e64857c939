"""Local files: find the files of each split, and read their rows into columns.

The files of an address are copied first and read like any other.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import nullcontext
from glob import glob, has_magic
from itertools import islice, repeat
from pathlib import Path
from typing import Any

from continual_petl.errors import PATHS_COUNT, InputError, MissingDataError, counted, known_names
from continual_petl.streams.reader.bounds import check_regular, check_unpacked
from continual_petl.streams.reader.delimited import shown_columns
from continual_petl.streams.reader.faulty_rows import FULL_ROWS, GONE, Record, column_of
from continual_petl.streams.reader.folders import entries_of
from continual_petl.streams.reader.quick_columns import quick_columns
from continual_petl.streams.reader.records import FORMATS, format_of, read_records, reader_of
from continual_petl.streams.reader.text_file import refuse_unknown
from continual_petl.streams.reader.wanted import Wanted
from continual_petl.streams.schema.data_spec import is_url, local_path
from continual_petl.streams.schema.limits_spec import LimitsSpec
from continual_petl.streams.schema.stream_spec import SPLITS, SplitName
from continual_petl.streams.sources.checks import names_in, nearest_to

ALIASES: dict[str, SplitName] = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
"""Accepted names of each split."""
_PART = re.compile(r"(\d+)[-_]of[-_](\d+)[^.]*")
"""What the name of a file says if it is one part of a split; a fingerprint may follow."""
_MOST_COLUMNS = 10_000
"""Of a table that is inspected, besides those of one row: with more, each row has columns of its own."""


def split_of(path: str) -> SplitName | None:
    """Return the split that a file is named after: ``train.csv``, ``dev.jsonl.gz``, ``test-00000-of-00002.parquet``, and of
    the files of Universal Dependencies, ``en_ewt-ud-test.conllu``.
    """
    words = re.split(r"[-_]", Path(path).name.split(".")[0].lower())
    return ALIASES.get(words[-1 if format_of(path) == ".conllu" else 0])


def matching(path: str) -> list[str]:
    """Return the files and folders that a path means, sorted: the one of this very name, or those it matches as a pattern.

    Of a pattern, the folders at its beginning that exist are names, whatever characters they hold.
    """
    if os.path.exists(path):
        return [path]
    folder, rest = os.path.dirname(path), os.path.basename(path)
    while folder and not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder, rest = os.path.dirname(folder), os.path.join(os.path.basename(folder), rest)
    found = glob(rest, root_dir=folder or None, recursive=True) if rest and has_magic(rest) else []
    return sorted(os.path.join(folder, name) for name in found)


def find_files(task: str, path: str) -> dict[SplitName, list[str]]:
    """Find the files of a task.

    In a folder, files named after a split are used and other files are ignored. A single file is the training split. If all
    files of a glob are named after a split, they form those splits; if none is, they form the training split.

    Args:
        task: name of the task, for messages.
        path: a file, a folder or a glob.

    Raises:
        InputError: if nothing is found, two files are named after the same split, or a format is unknown.
    """
    here = f"task {task!r}, data {path}"
    found: dict[SplitName, list[str]]
    check_regular(here, path)
    if os.path.isdir(path):
        below = [entry.path for entry in entries_of(path)]
        named = [each for each in below if split_of(each) and not os.path.isdir(each) and reader_of(each)]
        _refuse_folders(here, named, below)
        found = _by_split(here, _files(here, named)) or _split_folders(here, path)
        if not found:
            raise InputError(
                f"{here}: the folder has no file named after a split; it holds {names_in(path)}. Name the files train, "
                f"validation and test, each with one of these suffixes: {FORMATS}; or list them under data.data_files. "
                "Images belong in a folder for each class."
            )
    elif os.path.isfile(path):
        found = {"train": [path]}
    else:
        below = matching(path)
        files = _files(here, below)
        named = [name for name in files if split_of(name)]
        _refuse_folders(here, files, below)
        if below and not files:
            raise InputError(
                f"{here}: there are only folders, such as {below[0]}: give that folder, or a pattern of files"
            )
        if named and len(named) < len(files):
            other = next(name for name in files if not split_of(name))
            raise InputError(
                f"{here}: {named[0]} is named after a split, but {other} is not, so it is unclear which rows are for "
                "training; narrow the glob, or list the files under data.data_files: {train: ..., test: ...}."
            )
        found = _by_split(here, files) if named else {"train": files} if files else {}
    if not found:
        raise MissingDataError(f"{here}: {_no_such_path(path)}", path)
    for file in (name for names in found.values() for name in names):
        if reader_of(file) is None:
            refuse_unknown(here, file)
            raise InputError(
                f"{here}: the format of {file} is not recognised by its name; allowed: {FORMATS}. Rename the file, or give "
                "the reader: data: {path: csv, data_files: ...}."
            )
    return found


def expand(task: str, patterns: str | Sequence[str]) -> list[str]:
    """Return the files that match paths and globs; URLs (``https://``, ``hf://``) are passed through.

    Raises:
        InputError: if a path or glob matches nothing.
    """
    files: list[str] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if is_url(pattern):
            files.append(pattern)
            continue
        here = f"task {task!r}, data.data_files {pattern}"
        check_regular(here, local_path(pattern))
        matched = matching(local_path(pattern))
        names = _files(here, matched)
        if matched and not names:
            raise InputError(
                f"{here}: {matched[0]} is a folder, but data_files names files: give a pattern of its files, such as "
                f"{os.path.join(matched[0], '*.csv')}; or give data: FOLDER, with this folder or the one that holds a "
                "folder for each split"
            )
        if not names:
            raise MissingDataError(f"{here}: {_no_such_path(pattern)}", pattern)
        files += names
    return files


def _files(here: str, paths: Sequence[str]) -> list[str]:
    """Return the files among some paths; folders are none, and what cannot be read is an error."""
    for path in paths:
        check_regular(here if here.endswith(path) else f"{here}, {path}", path)
    return [path for path in paths if os.path.isfile(path)]


def _refuse_folders(here: str, files: Sequence[str], paths: Sequence[str]) -> None:
    """Refuse files beside a folder that is named after a split and holds rows too, which would not be read.

    Images without classes are no rows: the files may name them.
    """
    for path in paths if files else ():
        if os.path.basename(path).lower() not in ALIASES or not os.path.isdir(path):
            continue
        if any(file.startswith(os.path.join(path, "")) for file in files):
            continue  # a pattern of files in the folder
        if any(reader_of(entry.path) for entry in entries_of(path)):
            raise InputError(
                f"{here}: there are rows in the file {files[0]} and in the folder {path}, so it is unclear which are the "
                "splits. Move one of them away, or list the files under data.data_files: {train: ..., test: ...}."
            )


def _by_split(here: str, files: Sequence[str]) -> dict[SplitName, list[str]]:
    """Return the files of each split: one, or several whose names only differ in their numbers.

    What follows ``00000-of-00002`` may differ too: `datasets` wrote a fingerprint of each part there. Of such files, each
    part has to be there once.
    """
    found: dict[SplitName, list[str]] = {}
    for file in files:
        split = split_of(file)
        assert split is not None
        found.setdefault(split, []).append(file)
    for split, names in found.items():
        bases = [os.path.basename(name).lower() for name in names]
        parts = [_PART.search(base) for base in bases]
        numbers = [int(part[1]) for part in parts if part]
        several = len({re.sub(r"\d+", "0", _PART.sub("0", base)) for base in bases}) > 1
        totals = {int(part[2]) if part else None for part in parts}
        if several or len(totals) > 1 or len({*numbers}) < len(numbers):
            raise InputError(
                f"{here}: more than one file could be the {split} split: {', '.join(names)}. Keep one, or "
                f"choose under data.data_files: {{{split}: ...}}."
            )
        if parts[0]:
            _check_parts(here, split, sorted(numbers), int(parts[0][2]))
    return {split: found[split] for split in SPLITS if split in found}


def _check_parts(here: str, split: str, numbers: Sequence[int], total: int) -> None:
    """Refuse the parts of a split if they are not all there, counted from 0 or from 1."""
    first = int(numbers[0] > 0 and numbers[-1] == total)
    if numbers == [*range(first, first + len(numbers))] and len(numbers) == total:
        return
    raise InputError(
        f"{here}: by their names, the files of the {split} split are {counted(len(numbers), 'part')} of {total:,}, with "
        f"the numbers {known_names([*map(str, numbers)], limit=5)}: copy or download all of them, or list the files to "
        f"read under data.data_files: {{{split}: ...}}"
    )


def _split_folders(here: str, path: str) -> dict[SplitName, list[str]]:
    """Return the folder of each split, or the folder itself as the training split; nothing if its content is not known.

    Args:
        here: beginning of the messages.
        path: a folder without files that are named after splits.

    Raises:
        InputError: if two folders are named after the same split, rows are in a folder beside those of the splits, or it is
            unclear whether folders are splits or classes.
    """
    below = entries_of(path)
    folders = {entry.name: entry.path for entry in below if entry.name.lower() in ALIASES and entry.is_dir()}
    if reader_of(path) is not None:
        if folders and len(folders) == len(below):
            raise InputError(
                f"{here}: the folders {known_names([*folders])} are named after splits, but they hold images without a "
                "class: put each image into a folder of its class, as in train/cat/1.png; if these are the classes, give the "
                "folders other names"
            )
        return {"train": [path]}
    found: dict[SplitName, list[str]] = {}
    for name, folder in folders.items():
        if reader_of(folder) is not None:
            found.setdefault(ALIASES[name.lower()], []).append(folder)
    for split, several in found.items():
        if len(several) > 1:
            raise InputError(
                f"{here}: more than one folder could be the {split} split: {', '.join(several)}. Keep one, or give the "
                "others another name"
            )
    others = [entry.path for entry in below if entry.name not in folders and entry.is_dir()] if found else []
    # A saved data set may have more splits, as on the Hub.
    if unused := [folder for folder in others if reader_of(folder) == "images"]:
        raise InputError(
            f"{here}: beside the folders of the splits, there are rows in {', '.join(unused)}, which is not named after a "
            "split: name it train, validation or test, or move it away"
        )
    return {split: found[split] for split in SPLITS if split in found}


def _no_such_path(path: str) -> str:
    return f"there is no such file or folder; {nearest_to(path)}.{PATHS_COUNT}"


def read_table(
    task: str, paths: Sequence[str], wanted: Wanted, limits: LimitsSpec, reader: str | None = None
) -> dict[str, list[Any]]:
    """Read files into columns, one after the other; a cell that a row does not have is None.

    Args:
        task: name of the task, for messages.
        paths: the files.
        wanted: what to read of them.
        limits: maximum sizes of files and cells.
        reader: ``csv``, ``json``, ``parquet``, ``arrow``, ``conll`` or ``text``; None: the one for the suffix of each file.

    Raises:
        InputError: if a file cannot be read or exceeds a limit, or only some files of a table have a wanted column.
    """
    table = _Table(wanted.columns)
    first: tuple[str, list[str]] | None = None
    remote = any(map(is_url, paths))
    with (
        tempfile.TemporaryDirectory(prefix="continual-petl-", ignore_cleanup_errors=True) if remote else nullcontext("")
    ) as folder:
        for path, copy in [(given, copy) for given in paths for copy in copies(task, given, folder, limits)]:
            place, header = f"task {task!r}, {path}", list[str]()
            of_file = wanted._replace(header=header.extend)
            rows = read_records(place, copy, limits, of_file, reader=reader)
            head = [row for _, row in islice(rows, FULL_ROWS)]
            for some_names in (header, *head):
                table.add_names(place, some_names)
            rows.close()
            if len(head) < FULL_ROWS:
                table.add_rows(place, head)
            elif (columns := quick_columns(place, copy, limits, wanted, header, reader)) is not None:
                table.add_others(head)
                table.add_columns(columns)
            else:
                rows = read_records(place, copy, limits, wanted, reader=reader)
                while some := [row for _, row in islice(rows, FULL_ROWS)]:
                    table.add_rows(place, some)
            first = first or ((path, header) if header else None)
            if header and first and any((name in header) != (name in first[1]) for name in wanted.columns or ()):
                raise InputError(
                    f"task {task!r}: {path} has the columns {shown_columns(header)}, but {first[0]} has "
                    f"{shown_columns(first[1])}; all files of a task need the columns that it reads."
                )
    return table.filled()


class _Table:
    """Columns that grow row by row or by whole columns.

    Args:
        wanted: the columns to keep, besides the first rows of all others; None: all.
    """

    def __init__(self, wanted: Set[str] | None) -> None:
        self._wanted = wanted
        self._names: dict[str, None] = {}
        self._kept: dict[str, list[Any]] = {}
        self._others: dict[str, list[Any]] = {}
        self._num_rows = self._widest = 0

    def add_names(self, place: str, names: Iterable[str]) -> None:
        """Add the names of columns; their order is that of the table.

        Raises:
            InputError: if there are more names than a table has.
        """
        added = dict.fromkeys(names)
        self._names |= added
        self._widest = max(self._widest, len(added))
        if self._wanted is None and len(self._names) > _MOST_COLUMNS + self._widest:
            raise InputError(
                f"{place}: the rows have more than {_MOST_COLUMNS:,} different columns, such as "
                f"{shown_columns(self._names)}. If each row has keys of its own, write them as values: a column with a list."
            )

    def add_rows(self, place: str, rows: Sequence[Record]) -> None:
        """Add rows, each with its cells by name."""
        if self._wanted is None:
            for row in rows:
                self.add_names(place, row)
        names = self._names if self._wanted is None else self._wanted
        for name in names:
            self._column(name).extend(column_of(rows, name))
        self.add_others(rows)
        self._num_rows += len(rows)

    def add_others(self, rows: Sequence[Record]) -> None:
        """Keep the columns that are not wanted of the first rows of the table, which may be among these."""
        for row in rows[: max(0, FULL_ROWS - self._num_rows)]:
            for name in row.keys() - (self._wanted if self._wanted is not None else row.keys()):
                self._others.setdefault(name, []).append(row[name])

    def add_columns(self, columns: Mapping[str, list[Any]]) -> None:
        """Add rows as columns of equal lengths."""
        num_rows = len(next(iter(columns.values())))
        for name in self._wanted or ():
            self._column(name).extend(columns.get(name) or repeat(GONE, num_rows))
        self._num_rows += num_rows

    def filled(self) -> dict[str, list[Any]]:
        """Return the columns that are there, with None in place of a cell that a row does not have."""
        there = {name: self._column(name) for name in self._kept}
        for name, values in [*there.items()]:
            if not values or GONE in values:
                there[name] = [None if value is GONE else value for value in values]
                if values.count(GONE) == len(values):
                    del there[name]
        return {name: there[name] if name in there else self._others.get(name, []) for name in {**self._names, **there}}

    def _column(self, name: str) -> list[Any]:
        """Return a column, as long as the table."""
        column = self._kept.setdefault(name, [])
        column.extend(repeat(GONE, self._num_rows - len(column)))
        return column


def copies(task: str, path: str, folder: str, limits: LimitsSpec) -> list[str]:
    """Return the paths of the files at an address, which may be a pattern, copied into a folder; a local path stays as it is.

    Raises:
        InputError: if a file cannot be copied.
    """
    if not is_url(path):
        return [path]
    import fsspec
    from huggingface_hub import constants

    place, found = f"task {task!r}, data {path}", []
    try:
        files = fsspec.open_files(path, "rb")
        if constants.HF_HUB_OFFLINE:
            raise InputError(f"{place}: HF_HUB_OFFLINE is set, so no file is downloaded: give the path of a copy.")
        for number, remote in enumerate(files):
            found.append(os.path.join(tempfile.mkdtemp(dir=folder), os.path.basename(remote.path) or str(number)))
            with remote as source, open(found[-1], "wb") as copy:
                while piece := source.read(2**20):
                    copy.write(piece)
                    check_unpacked(place, copy.tell(), copy.tell(), limits)
    except InputError:
        raise
    except ImportError as error:
        name = getattr(error.__cause__, "name", None) or error.name
        install = f"pip install {name}" if name else "install the package that it names"
        raise InputError(f"{place}: {error}: {install}, or download the files and give their paths.") from error
    except Exception as error:  # each file system has errors of its own
        why = f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}"
        raise InputError(
            f"{place}: cannot be downloaded: {why}. Check the address, or give the path of a copy."
        ) from error
    if not found:
        raise InputError(f"{place}: there is no such file; check the address, or give the path of a copy.")
    return found
