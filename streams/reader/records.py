"""Read the rows of any file one at a time, with one meaning everywhere: for training, `init`, a dry run and `predict`.

Nothing here imports `datasets`, which takes seconds.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

from continual_petl.errors import InputError
from continual_petl.streams.reader.bounds import check_regular, memory_reported
from continual_petl.streams.reader.delimited import delimited_records
from continual_petl.streams.reader.faulty_rows import Bad, FaultyRows, Numbered
from continual_petl.streams.reader.folders import folder_records, reader_of_folder
from continual_petl.streams.reader.json_records import has_lines, json_records
from continual_petl.streams.reader.text_file import TextFile, refuse_other
from continual_petl.streams.reader.wanted import Wanted
from continual_petl.streams.reader.word_columns import word_records
from continual_petl.streams.schema.limits_spec import LimitsSpec

READER_OF_SUFFIX = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".conll": "conll",
    ".conllu": "conll",
    ".iob": "conll",
    ".iob2": "conll",
    ".bio": "conll",
    ".txt": "text",
}
"""The reader for each suffix; one of `PACKED` may follow, except for parquet, arrow and feather."""
LINES = (".jsonl", ".ndjson")
"""Suffixes of JSON with one object per line."""
PACKED = (".gz", ".bz2", ".xz", ".zst", ".lz4")
FORMATS = (
    "csv, tsv, json, jsonl, parquet, arrow, feather, conll, conllu (text formats also with .gz, .bz2, .xz, .zst, .lz4)"
)


def format_of(path: str | Path) -> str:
    """Return the suffix of a file's format in lower case, without that of a compression."""
    name, dot, suffix = Path(path).name.lower().rpartition(".")
    if dot + suffix in PACKED:
        name, dot, suffix = name.rpartition(".")
    return dot + suffix


def reader_of(path: str | Path) -> str | None:
    """Return the reader for a file, by its suffix, or for a folder, by its contents; None if there is none."""
    if os.path.isdir(path):
        return reader_of_folder(str(path))
    reader = READER_OF_SUFFIX.get(format_of(path))
    return None if reader in ("parquet", "arrow") and not str(path).lower().endswith(format_of(path)) else reader


def read_records(
    place: str,
    path: str | Path,
    limits: LimitsSpec,
    wanted: Wanted = Wanted(),  # noqa: B008
    *,
    reader: str | None = None,
    bad: Bad | None = None,
) -> Generator[Numbered, None, None]:
    """Read a file piece by piece and yield its rows, each with the number of its line, or of the row in other formats.

    Args:
        place: how error messages begin; names the file.
        path: path of the file, or of a folder that is read as one.
        limits: maximum sizes of the file and its cells.
        wanted: what is read of it.
        reader: csv, json, parquet, arrow, conll, text, or of a folder images or saved; None: the one for its name.
        bad: told of each row that cannot be read, which is then left out. None: all are reported in one error, after the
            last row.

    Raises:
        InputError: if the file or, without ``bad``, any of its rows cannot be read; the message names the lines or rows.
    """
    path = str(path)
    check_regular(place, path)
    kind = reader_of(path) if reader is None else reader
    with memory_reported(place):
        if kind in ("images", "saved"):
            yield from folder_records(place, path, kind, limits, wanted)
            return
        refuse_other(place, path)
        if kind in ("parquet", "arrow"):
            from continual_petl.streams.reader.columnar import columnar_records  # importing pyarrow takes a moment

            yield from columnar_records(place, path, kind, limits, wanted)
            return
        file, by_line = TextFile(path, place, limits), True
        if kind == "json":
            by_line = has_lines(file, wanted.lists, named_so=format_of(path) in LINES)
        faulty = FaultyRows(place, "line" if by_line else "row")
        if kind == "json":
            yield from json_records(file, bad or faulty, wanted.columns, wanted.lists, lines=by_line)
        elif kind == "csv":
            yield from delimited_records(file, bad or faulty, wanted, tabs=format_of(path) == ".tsv")
        elif kind == "conll":
            yield from word_records(file, bad or faulty, wanted.columns, universal=format_of(path) == ".conllu")
        elif kind == "text":
            wanted.header(["text"])
            for number, line in enumerate(file.lines(), 1):
                yield number, {"text": line.removesuffix("\n").removesuffix("\r")}
        else:
            raise InputError(f"{place}: the format is not recognised by its name; allowed: {FORMATS}.")
        faulty.check()
