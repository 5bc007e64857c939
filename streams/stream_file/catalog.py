"""The streams that come with the package, by name: ``streams/catalog/*.yaml``.

Needs no more than the standard library, so that a wrong name is answered at once.
"""

from __future__ import annotations

from importlib.resources import files
from itertools import islice
from pathlib import Path

from continual_petl.errors import InputError, did_you_mean

ALIASES = {"classic5-1": "classic5", "long15-4": "long15"}
"""Other names of catalog streams, by the number that the literature gives their order."""


_LOOKED_AT = 1_000
"""Files beside one that is not there, for a hint."""


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
    if path.is_file():
        return path
    if path.is_dir():
        raise InputError(f"{name}: this is a folder; give the stream file itself, such as {path / 'stream.yaml'}")
    known = catalog()
    if (own := ALIASES.get(name, name)) in known:
        return known[own]
    raise InputError(
        f"{name}: there is no such file, and no such catalog stream{did_you_mean(name, [*known, *_beside(path)])}; the "
        f"catalog has {', '.join(known)} (continual-petl streams says what they are). Check the path: it counts from "
        f"{Path.cwd()}"
    )


def _beside(path: Path) -> list[str]:
    """Return the stream files in the folder of a path that is not there, as they would be written."""
    try:
        return [str(file) for file in islice(path.parent.iterdir(), _LOOKED_AT) if file.suffix in (".yaml", ".yml")]
    except OSError:  # there is no such folder, or it may not be read
        return []
