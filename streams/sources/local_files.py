"""Local files: find the files of each split, and read them with ``datasets``, which takes seconds to import.

``datasets`` first writes the rows to a cache; for local files, that cache is a temporary folder, so nothing is left behind,
next to the data or elsewhere, and a changed file is never read from a stale copy.
"""

from __future__ import annotations

import logging
import lzma
import os
import re
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import glob, has_magic
from pathlib import Path
from typing import Any

from continual_petl.errors import PATHS_COUNT, InputError, MissingDataError
from continual_petl.streams.schema.limits_spec import LimitsSpec
from continual_petl.streams.schema.stream_spec import SPLITS, SplitName
from continual_petl.streams.sources.before_reading import bad_line_of, check_before_reading, package_missing
from continual_petl.streams.sources.checks import Where, check_rows, names_in, nearest_in
from continual_petl.streams.sources.csv_text import csv_options
from continual_petl.streams.sources.memory_errors import memory_reported
from continual_petl.streams.sources.plain_values import columns_of
from continual_petl.streams.sources.small_files import small_file_splits
from continual_petl.streams.sources.text_file import check_regular

READER_OF_SUFFIX = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".txt": "text",
}
"""The ``datasets`` reader for each suffix; ``.gz`` may follow, except for parquet and arrow."""

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

_FORMATS = "csv, tsv, json, jsonl, parquet (text formats also with .gz)"
_READ_ERRORS = (  # in addition to the errors of `datasets`
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    LookupError,
    StopIteration,  # raised by the JSON reader for a file without rows
    zipfile.BadZipFile,  # this and the next three: only for downloaded files; local ones were checked before
    tarfile.TarError,
    lzma.LZMAError,
    zlib.error,
)


def reader_of(path: str) -> str | None:
    """Return the reader for a file by its suffix, or ``None``."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes and suffixes[-1] == ".gz":
        reader = READER_OF_SUFFIX.get(suffixes[-2]) if len(suffixes) > 1 else None
        return None if reader in ("parquet", "arrow") else reader
    return READER_OF_SUFFIX.get(suffixes[-1]) if suffixes else None


def split_of(path: str) -> SplitName | None:
    """Return the split that a file is named after: ``train.csv``, ``dev.jsonl.gz``, ``test-00000-of-00002.parquet``."""
    stem = Path(path).name.split(".")[0].lower()
    return ALIASES.get(re.split(r"[-_]", stem)[0])


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
        entries = sorted(entry.path for entry in os.scandir(path) if entry.is_file() and reader_of(entry.path))
        found = _by_split(here, [entry for entry in entries if split_of(entry)])
        if not found:
            raise InputError(
                f"{here}: the folder has no file named after a split; it holds {names_in(path)}. Name the files train, "
                f"validation and test, each with one of these suffixes: {_FORMATS}; or list them under data.data_files."
            )
    elif os.path.isfile(path):
        found = {"train": [path]}
    elif has_magic(path):
        files = sorted(name for name in glob(path, recursive=True) if os.path.isfile(name))
        named = [name for name in files if split_of(name)]
        if named and len(named) < len(files):
            other = next(name for name in files if not split_of(name))
            raise InputError(
                f"{here}: {named[0]} is named after a split, but {other} is not, so it is unclear which rows are for "
                "training; narrow the glob, or list the files under data.data_files: {train: ..., test: ...}."
            )
        found = _by_split(here, files) if named else {"train": files} if files else {}
    else:
        found = {}
    if not found:
        raise MissingDataError(f"{here}: {_no_such_path(path)}", path)
    for file in (name for names in found.values() for name in names):
        if reader_of(file) is None:
            raise InputError(
                f"{here}: the format of {file} is not recognised by its name; allowed: {_FORMATS}. Rename the file, or give "
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
        if "://" in pattern:
            files.append(pattern)
            continue
        check_regular(f"task {task!r}, data.data_files {pattern}", pattern)
        names = [pattern] if os.path.isfile(pattern) else sorted(filter(os.path.isfile, glob(pattern, recursive=True)))
        if not names:
            raise MissingDataError(f"task {task!r}, data.data_files {pattern}: {_no_such_path(pattern)}", pattern)
        files += names
    return files


def _by_split(here: str, files: Sequence[str]) -> dict[SplitName, list[str]]:
    found: dict[SplitName, list[str]] = {}
    words: dict[SplitName, set[tuple[str, str | None]]] = {}
    for file in files:
        split = split_of(file)
        assert split is not None
        found.setdefault(split, []).append(file)
        words.setdefault(split, set()).add((re.split(r"[-_.]", Path(file).name.lower())[0], reader_of(file)))
    for split, kinds in words.items():
        if len(kinds) > 1:
            raise InputError(
                f"{here}: more than one file could be the {split} split: {', '.join(found[split])}. Keep one, or "
                f"choose under data.data_files: {{{split}: ...}}."
            )
    return {split: found[split] for split in SPLITS if split in found}


def _no_such_path(path: str) -> str:
    folder = Path(path)
    missing = folder
    while not folder.is_dir() and folder != folder.parent:
        missing, folder = folder, folder.parent
    return f"there is no such file or folder; {nearest_in(folder.resolve(), missing.name)}.{PATHS_COUNT}"


def read_files(
    task: str,
    reader: str,
    files: Mapping[SplitName, Sequence[str]],
    expressions: Mapping[SplitName, str],
    limits: LimitsSpec,
    *,
    light: bool = False,
) -> dict[SplitName, dict[str, list[Any]]]:
    """Read splits into columns.

    Args:
        task: name of the task, for messages.
        reader: ``csv``, ``json``, ``parquet``, ``arrow`` or ``text``.
        files: the files of each split.
        expressions: which rows make up each requested split, such as ``train[:80%]``.
        limits: maximum sizes of files and cells.
        light: whether to avoid `datasets` where the values are the same without it.

    Raises:
        InputError: if a file cannot be read or exceeds a limit, or an expression is invalid.
    """
    named = ", ".join(path for names in files.values() for path in names)
    with memory_reported(f"task {task!r}, {named}"):
        if light and (found := small_file_splits(task, reader, files, expressions, limits)) is not None:
            return found
        return _read_with_datasets(task, reader, files, expressions, limits)


def _read_with_datasets(
    task: str,
    reader: str,
    files: Mapping[SplitName, Sequence[str]],
    expressions: Mapping[SplitName, str],
    limits: LimitsSpec,
) -> dict[SplitName, dict[str, list[Any]]]:
    """Read splits into columns; see `read_files`."""
    import datasets  # type: ignore[import-untyped]
    import pyarrow as pa

    options: dict[str, Any] = {}
    if reader == "csv":
        options = csv_options(task, [file for names in files.values() for file in names], limits)
    columns = {}
    with tempfile.TemporaryDirectory(prefix="continual-petl-", ignore_cleanup_errors=True) as cache, quiet():
        for split, expression in expressions.items():
            try:
                wanted = _named_in(expression, files)
                paths = [path for names in wanted.values() for path in names]
                for path in paths:
                    check_before_reading(f"task {task!r}, {path}", path, reader, limits)
                if reader == "arrow":
                    wanted = _as_streams(wanted, cache)
                dataset = datasets.load_dataset(reader, data_files=wanted, split=expression, cache_dir=cache, **options)
                columns[split] = columns_of(dataset, f"task {task!r}, split {split} ({', '.join(paths)})", limits)
            except InputError:
                raise
            except ImportError as error:
                raise InputError(package_missing(task, paths, error)) from error
            except (datasets.exceptions.DatasetsError, pa.ArrowException, *_READ_ERRORS) as error:
                cause = error.__cause__ or error
                if isinstance(cause, MemoryError):
                    raise
                if isinstance(cause, StopIteration) or "corresponds to no data" in str(cause):
                    check_rows(Where(task=task, split=split, origin=", ".join(paths)), 0)
                place = f"task {task!r}, split {split}: cannot read {expression!r} of {', '.join(paths)} as {reader}"
                raise InputError(f"{place}: {_why_unreadable(cause, paths, reader)}") from error
            del dataset
    return columns


def _why_unreadable(cause: BaseException, paths: Sequence[str], reader: str) -> str:
    """Return why a reader could not read the files, and what to do about it."""
    if reader == "json" and (line := bad_line_of(paths)):
        return f"{line}. Repair this line, or leave it out."
    why = f"{type(cause).__name__}: {' '.join(str(cause).split()).rstrip('.')}"
    return f"{why}. Repair the file; if it holds another format, give it the suffix of that format."


def _as_streams(files: Mapping[str, Sequence[str]], folder: str) -> dict[str, list[str]]:
    """Return the files of each split in the streaming format of arrow; URLs are left to `datasets`."""
    from continual_petl.streams.sources.table_file import as_stream  # imports pyarrow

    return {
        split: [path if "://" in path else as_stream(path, folder) for path in paths] for split, paths in files.items()
    }


def _named_in(expression: str, files: Mapping[SplitName, Sequence[str]]) -> dict[str, list[str]]:
    """Return the files that an expression refers to, so that mistakes in other splits are not reported."""
    named = {part.partition("[")[0].strip() for part in expression.split("+")}
    return {name: list(paths) for name, paths in files.items() if name in named or not named <= set(files)}


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the progress bars and messages of ``datasets`` while small local files are read; errors are still raised."""
    import datasets

    were_on, verbosity = datasets.are_progress_bars_disabled() is False, datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        if were_on:
            datasets.enable_progress_bars()
