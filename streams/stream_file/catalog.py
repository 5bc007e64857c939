"""The streams included in the package, by name: ``streams/catalog/*.yaml``.

Needs only the standard library, so that a wrong name is reported immediately.
"""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from continual_petl.errors import InputError, did_you_mean, quoted
from continual_petl.streams.stream_file.similar_files import did_you_mean_path

ALIASES = {"classic5-1": "classic5", "long15-4": "long15"}
"""Aliases of catalog streams, numbered by task order as in the literature."""
ROW_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".gz")
"""Suffixes of files that hold rows rather than a stream."""


def catalog() -> dict[str, Path]:
    """Return the files of the catalog by name, sorted."""
    folder = files("continual_petl.streams") / "catalog"
    found = {Path(str(entry)).stem: Path(str(entry)) for entry in folder.iterdir() if entry.name.endswith(".yaml")}
    return dict(sorted(found.items()))


def description(file: Path) -> str:
    """Return the description of a catalog file: its first line, which is a comment."""
    with file.open(encoding="utf-8") as handle:
        return handle.readline().lstrip("# ").rstrip()


def find_stream(name: str) -> Path:
    """Return the file of a stream that is given by its path, or by its name in the catalog.

    Raises:
        InputError: if there is no such file and no such catalog stream, or the file holds rows.
    """
    path = Path(name)
    if path.suffix in ROW_SUFFIXES and os.path.isfile(path):
        raise InputError(
            f"{name}: a stream is a YAML file, but this one holds rows; `continual-petl init {quoted(name)}` drafts a "
            "stream that learns them"
        )
    if os.path.exists(path):  # also False for strings that are not valid paths
        from continual_petl.streams.stream_file.file_types import YAML, refuse_other_type  # imports the schema

        refuse_other_type(name, "a stream file", YAML)
    if os.path.isfile(path):
        return path
    if os.path.isdir(path):
        raise InputError(f"{name}: this is a folder; give the stream file itself, such as {path / 'stream.yaml'}")
    known = catalog()
    if (resolved := ALIASES.get(name, name)) in known:
        return known[resolved]
    hint = did_you_mean(name, known) or did_you_mean_path(path, [path.parent], _is_stream)
    raise InputError(
        f"{name}: there is no such file, and no such catalog stream{hint}; the catalog has {', '.join(known)} "
        f"(continual-petl streams describes them). Check the path: it is relative to {Path.cwd()}"
    )


def _is_stream(path: Path) -> bool:
    return path.suffix in (".yaml", ".yml") and path.is_file()
