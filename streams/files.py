"""Files of this machine: which of them hold which split, and reading them with ``datasets``.

``datasets`` writes what it reads into a cache first; for local files that cache is a temporary folder, so nothing
stays behind, beside the data or elsewhere, and a changed file is never answered from an old copy.

CSV is read as text and nothing else: pandas, which ``datasets`` uses, would otherwise turn the word "None" or "NA"
into a missing value and "007" into 7. In TSV a quotation mark is an ordinary character (as IANA registers the
format): with quoting, one stray mark swallows all lines up to the next one.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import glob, has_magic
from pathlib import Path
from typing import IO, Any

import datasets  # type: ignore[import-untyped]

from continual_petl.errors import InputError
from continual_petl.streams.checks import Where, check_rows
from continual_petl.streams.schema import SPLITS, SplitName

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
"""Which reader of ``datasets`` a file needs; ``.gz`` may follow, except on parquet and arrow."""

ALIASES: dict[str, SplitName] = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
"""Names under which a split is found."""

_FORMATS = "csv, tsv, json, jsonl, parquet (and .gz of the text formats)"
_READ_ERRORS = (
    datasets.exceptions.DatasetsError,
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    LookupError,
    StopIteration,  # of the JSON reader, for a file without rows
)


def reader_of(path: str) -> str | None:
    """Return the reader for a file by its name, or ``None``."""
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

    A folder gives the files that are named after a split, others are left alone. A single file is the training
    split. A glob gives splits if all its files are named after one, and the training split if none is.

    Args:
        task: name of the task, for messages.
        path: a file, a folder or a glob.

    Raises:
        InputError: if nothing is found, two names mean one split, or a format is unknown.
    """
    here = f"task {task!r}, data {path}"
    found: dict[SplitName, list[str]]
    if os.path.isdir(path):
        entries = sorted(entry.path for entry in os.scandir(path) if entry.is_file() and reader_of(entry.path))
        found = _by_split(here, [entry for entry in entries if split_of(entry)])
        if not found:
            listed = ", ".join(sorted(os.listdir(path))[:10]) or "nothing"
            raise InputError(
                f"{here}: the folder has no file named after a split; it holds {listed}. Name the files train, "
                "validation and "
                f"test with a suffix of {_FORMATS}, or list them under data.data_files."
            )
    elif os.path.isfile(path):
        found = {"train": [path]}
    elif has_magic(path):
        files = sorted(name for name in glob(path, recursive=True) if os.path.isfile(name))
        named = [name for name in files if split_of(name)]
        if named and len(named) < len(files):
            other = next(name for name in files if not split_of(name))
            raise InputError(
                f"{here}: {named[0]} is named after a split and {other} is not, so it is unclear which rows are "
                "trained on; "
                "narrow the glob, or list the files under data.data_files: {train: ..., test: ...}."
            )
        found = _by_split(here, files) if named else {"train": files} if files else {}
    else:
        found = {}
    if not found:
        raise InputError(f"{here}: {_nothing_there(path)}")
    for file in (name for names in found.values() for name in names):
        if reader_of(file) is None:
            raise InputError(
                f"{here}: the format of {file} is not known by its name; allowed: {_FORMATS}. Rename the file, or say "
                "which "
                "reader it needs: data: {path: csv, data_files: ...}."
            )
    return found


def expand(task: str, patterns: str | Sequence[str]) -> list[str]:
    """Return the files that paths and globs name; addresses (``https://``, ``hf://``) pass through.

    Raises:
        InputError: if a path or glob finds nothing.
    """
    files: list[str] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if "://" in pattern:
            files.append(pattern)
            continue
        names = [pattern] if os.path.isfile(pattern) else sorted(filter(os.path.isfile, glob(pattern, recursive=True)))
        if not names:
            raise InputError(f"task {task!r}, data.data_files {pattern}: {_nothing_there(pattern)}")
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
                "choose under "
                f"data.data_files: {{{split}: ...}}."
            )
    return {split: found[split] for split in SPLITS if split in found}


def _nothing_there(path: str) -> str:
    folder = Path(path)
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    listed = ", ".join(sorted(os.listdir(folder))[:10]) or "nothing"
    return (
        f"there is no such file or folder; {folder.resolve()} holds {listed}. Relative paths count from data_dir, or "
        "from the folder of "
        "the stream file; for a data set on the Hub write data: {path: NAME}."
    )


def read_files(
    task: str, reader: str, files: Mapping[SplitName, Sequence[str]], expressions: Mapping[SplitName, str]
) -> dict[SplitName, dict[str, list[Any]]]:
    """Read splits into columns.

    Args:
        task: name of the task, for messages.
        reader: ``csv``, ``json``, ``parquet``, ``arrow`` or ``text``.
        files: the files of each split.
        expressions: which rows make up each wanted split, such as ``train[:80%]``.

    Raises:
        InputError: if a file cannot be read, or an expression does not fit.
    """
    options: dict[str, Any] = {}
    if reader == "csv":
        options = _csv_options(task, [file for names in files.values() for file in names])
    columns = {}
    with tempfile.TemporaryDirectory(prefix="continual-petl-", ignore_cleanup_errors=True) as cache, quiet():
        for split, expression in expressions.items():
            try:
                wanted = _named_in(expression, files)
                dataset = datasets.load_dataset(
                    reader,
                    data_files=wanted,
                    split=expression,
                    cache_dir=cache,
                    **options,
                )
                columns[split] = dataset.with_format("arrow")[:].to_pydict()
            except _READ_ERRORS as error:
                cause = error.__cause__ or error
                paths = [path for names in wanted.values() for path in names]
                if isinstance(cause, StopIteration) or "corresponds to no data" in str(cause):
                    check_rows(Where(task=task, split=split, origin=", ".join(paths)), 0)
                place = _bad_json_line(paths) if reader == "json" else None
                why = place or f"{type(cause).__name__}: {' '.join(str(cause).split()).rstrip('.')}"
                raise InputError(
                    f"task {task!r}, split {split}: cannot read {expression!r} of {', '.join(paths)} as {reader}: {why}. "
                    "Repair the file, or say which reader it needs: data: {path: json, data_files: ...}."
                ) from error
            del dataset
    return columns


def _named_in(expression: str, files: Mapping[SplitName, Sequence[str]]) -> dict[str, list[str]]:
    """Return the files that an expression speaks of, so that no other split's mistakes are blamed on it."""
    named = {part.partition("[")[0].strip() for part in expression.split("+")}
    return {name: list(paths) for name, paths in files.items() if name in named or not named <= set(files)}


def _bad_json_line(paths: Sequence[str]) -> str | None:
    """Return which line of which file is no JSON object; pyarrow says neither."""
    for path in paths:
        if "://" in path or not {".jsonl", ".ndjson"} & set(Path(path.lower()).suffixes):
            continue
        try:
            with _open(path) as handle:
                for number, line in enumerate(handle, 1):
                    try:
                        if line.strip() and not isinstance(json.loads(line), dict):
                            return f"line {number} of {path} is not a JSON object ({{...}})"
                    except ValueError as error:
                        return f"line {number} of {path} is not JSON ({error})"
        except (OSError, ValueError, EOFError):
            return None  # what datasets said tells more
    return None


def _open(path: str) -> IO[str]:
    if path.lower().endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return open(path, encoding="utf-8-sig", newline="")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the progress bars of ``datasets`` for small local work."""
    were_on = datasets.are_progress_bars_disabled() is False
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if were_on:
            datasets.enable_progress_bars()


def _csv_options(task: str, files: Sequence[str]) -> dict[str, Any]:
    local = [file for file in files if "://" not in file]
    tabs = {".tsv" in Path(file).suffixes for file in files}
    if len(tabs) > 1:
        raise InputError(f"task {task!r}: csv and tsv files cannot be mixed in one task; convert one of them.")
    style: dict[str, Any] = {"sep": "\t", "quoting": csv.QUOTE_NONE} if tabs == {True} else {"sep": ","}
    options = style | {"keep_default_na": False, "na_filter": False, "encoding": "utf-8-sig"}
    headers = {file: _header(task, file, style) for file in local}
    if headers:
        first = next(iter(headers.values()))
        for file, header in headers.items():
            if sorted(header) != sorted(first):
                raise InputError(
                    f"task {task!r}: {file} has the columns {', '.join(header)}, but {local[0]} has "
                    f"{', '.join(first)}; all "
                    "files of a task need the same header line."
                )
        options["features"] = datasets.Features({name: datasets.Value("string") for name in first})
    return options


def _header(task: str, file: str, style: Mapping[str, Any]) -> list[str]:
    """Return the header, after checking that every line has as many fields.

    pandas takes the first column of a file whose lines are all one field too long as row names, and shifts the rest.
    """
    limit = csv.field_size_limit(2**31 - 1)
    try:
        with _open(file) as handle:
            lines = csv.reader(handle, delimiter=style["sep"], quoting=style.get("quoting", csv.QUOTE_MINIMAL))
            header = next(lines, [])
            ragged, start = [], lines.line_num + 1
            for fields in lines:
                if fields and len(fields) != len(header):
                    ragged.append((start, len(fields)))
                start = lines.line_num + 1
    except (OSError, ValueError, EOFError, csv.Error) as error:
        raise InputError(
            f"task {task!r}: cannot read {file}: {error}; it must be UTF-8 text with a header line."
        ) from error
    finally:
        csv.field_size_limit(limit)
    if not header or len(set(header)) < len(header):
        what = f"the header {', '.join(header)}, which names a column twice" if header else "no header line"
        raise InputError(f"task {task!r}: {file} has {what}; the first line must name every column once.")
    if ragged:
        shown = "; ".join(f"line {line}: {count}" for line, count in ragged[:5])
        more = f"; and {len(ragged) - 5} more" if len(ragged) > 5 else ""
        advice = "put a text that holds a comma in double quotes" if style["sep"] == "," else "no text may hold a tab"
        raise InputError(
            f"task {task!r}, {file}: the header names {len(header)} columns ({', '.join(header)}), but "
            f"{'1 line has' if len(ragged) == 1 else f'{len(ragged)} lines have'} another number of fields: "
            f"{shown}{more}. Repair these lines: {advice}."
        )
    # A data frame written with its row numbers has a column without a name; pandas calls it so.
    return [name or f"Unnamed: {number}" for number, name in enumerate(header)]
