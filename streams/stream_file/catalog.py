"""The streams that come with the package, by name: ``streams/catalog/*.yaml``.

Needs no more than the standard library, so that a wrong name is answered at once.
"""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from continual_petl.errors import InputError, did_you_mean
from continual_petl.streams.stream_file.near import did_you_mean_path

ALIASES = {"classic5-1": "classic5", "long15-4": "long15"}
"""Other names of catalog streams, by the number that the literature gives their order."""


def catalog() -> dict[str, Path]:
    """Return the files of the catalog by name, sorted."""
    folder = files("continual_petl.streams") / "catalog"
    found = {Path(str(entry)).stem: Path(str(entry)) for entry in folder.iterdir() if entry.name.endswith(".yaml")}
    return dict(sorted(found.items()))


def description(file: Path) -> str:
    """Return what a catalog file says of itself: the text of its first line, which is a comment."""
    with file.open(encoding="utf-8") as handle:
        return handle.readline().lstrip("# ").rstrip()


def find_stream(name: str) -> Path:
    """Return the file of a stream: a path, or the name of one in the catalog.

    Raises:
        InputError: if there is neither.
    """
    path = Path(name)
    if os.path.isfile(path):  # which takes whatever is no path for one that is not there
        return path
    if os.path.isdir(path):
        raise InputError(f"{name}: this is a folder; give the stream file itself, such as {path / 'stream.yaml'}")
    known = catalog()
    if (own := ALIASES.get(name, name)) in known:
        return known[own]
    hint = did_you_mean(name, known) or did_you_mean_path(path, [path.parent], _is_stream)
    raise InputError(
        f"{name}: there is no such file, and no such catalog stream{hint}; the catalog has {', '.join(known)} "
        f"(continual-petl streams says what they are). Check the path: it counts from {Path.cwd()}"
    )


def _is_stream(path: Path) -> bool:
    return path.suffix in (".yaml", ".yml") and path.is_file()
