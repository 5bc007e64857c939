"""Recognises a file or folder of another type than the command needs, so that one sentence says which command takes it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from continual_petl.errors import InputError, StreamFileError, quoted
from continual_petl.streams.reader.records import PACKED, READER_OF_SUFFIX
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.stream_file.size_limits import MAX_BYTES
from continual_petl.streams.stream_file.yaml_nodes import parse

FileType = Literal["stream", "task", "sweep"]
PathType = Literal[
    "stream",
    "task",
    "sweep",
    "yaml",
    "stream of a run",
    "run",
    "swept",
    "adapter",
    "model",
    "page",
    "report",
    "rows",
    "data",
]
YAML: tuple[PathType, ...] = ("stream", "task", "sweep", "yaml", "stream of a run")
"""The types whose file is read before its content is judged: a parser then names what is wrong with it."""
_NAMES: Mapping[FileType, str] = {"stream": "a stream", "task": "one task", "sweep": "a sweep"}
_WHAT: Mapping[PathType, tuple[str, str]] = {
    "stream": ("the file of a stream", "`continual-petl run {path}` learns it"),
    "task": (
        "the file of one task",
        "`continual-petl learn RUN {path}` adds it to a run, and a stream lists it under tasks",
    ),
    "sweep": ("the file of a sweep", "`continual-petl sweep STREAM {path}` tries its settings on a stream"),
    "yaml": (
        "a YAML file",
        "`continual-petl run {path} --dry-run` says what is wrong with it if it should be a stream",
    ),
    "stream of a run": (
        "the stream file of a run",
        "`continual-petl show {folder}` shows the run, and `continual-petl run {path}` resumes it",
    ),
    "run": (
        "a run folder",
        "`continual-petl show {path}` shows it, and `continual-petl learn {path} TASK.yaml` adds a task to it",
    ),
    "swept": ("the folder of a sweep", "{path}/chosen.yaml, once it is there, is the stream with the chosen settings"),
    "adapter": ("the folder of an adapter", "`continual-petl import RUN {path} TASK` adds it to a run"),
    "model": (
        "the folder of a model",
        "`continual-petl init DATA --backbone {path}` drafts a stream with it as the backbone",
    ),
    "page": ("an HTML page", "it is for a browser"),
    "report": ("the folder of a report", "its index.html is for a browser"),
    "rows": ("a file with rows", "`continual-petl init {path}` drafts a stream that learns them"),
    "data": ("a folder with data", "`continual-petl init {path}` drafts a stream that learns its rows"),
}
"""For every type, what it is called, and which command takes it."""
_ROWS = {*READER_OF_SUFFIX, *PACKED} - {".txt"}
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")


def type_of_path(path: str | os.PathLike[str]) -> PathType | None:
    """Return what a file or folder holds, or None if that is not certain.

    Files are judged by their names; folders, YAML and JSON by their content.
    """
    place = Path(path)
    if os.path.isdir(place):
        names = {name: os.path.exists(place / name) for name in ("stream.yaml", "banks", "sweep.json", "swept.yaml")}
        if names["stream.yaml"] and names["banks"]:
            return "run"
        if names["sweep.json"] and names["swept.yaml"]:
            return "swept"
        if os.path.isfile(place / "adapter_config.json"):
            return "adapter"
        if os.path.isfile(place / "config.json") and any(os.path.exists(place / name) for name in _WEIGHTS):
            return "model"
        if os.path.isfile(place / "index.html") and os.path.exists(place / "plotly.min.js"):
            return "report"
        return "data" if any(path.suffix in _ROWS for path in place.glob("train*")) else None
    if not os.path.isfile(place):  # also for strings that are not valid paths
        return None
    if place.suffix == ".json":  # JSON is YAML too
        return _described(place, rows="rows")
    if place.suffix in (".yaml", ".yml"):
        if place.name == "stream.yaml" and os.path.isdir(place.parent / "banks"):
            return "stream of a run"
        return _described(place, rows="yaml")
    return "page" if place.suffix in (".html", ".htm") else "rows" if place.suffix in _ROWS else None


def _described(file: Path, *, rows: PathType) -> PathType | None:
    """Return what the keys of a file describe, or ``rows`` if it is too large or has other content.

    Of JSON that cannot be read, only a list, or several lines with an object each, are certain to be rows.
    """
    try:
        if file.stat().st_size > MAX_BYTES:
            return rows
        text = file.read_text("utf-8-sig")
        parsed = parse(text)
    except (OSError, ValueError):
        return rows
    if rows == "rows" and parsed.problems and not (text.lstrip().startswith("[") or "}\n{" in text):
        return None
    return type_of(parsed.tree) or rows


def refuse_other_type(
    path: str | os.PathLike[str], wanted: str, takes: Collection[PathType] = (), where: str = ""
) -> None:
    """Raise `InputError` with one sentence if a path is of another type; do nothing if its type is not certain.

    Args:
        path: the file or folder that was given.
        wanted: what is expected, in words.
        takes: the types that the command takes.
        where: the option it was given with, if any.
    """
    found = type_of_path(path)
    if found is None or found in takes:
        return
    what, command = _WHAT[found]
    of_command = command.format(path=quoted(os.fspath(path)), folder=quoted(Path(path).parent))
    raise InputError(f"{where}{os.fspath(path)}: this is {what}, but {wanted} is expected here; {of_command}")


def type_of(tree: Any) -> FileType | None:
    """Return what the plain data of a YAML file describes, judging by the keys that only one type of file has."""
    if not isinstance(tree, Mapping):
        return None
    if "tasks" in tree:
        return "stream"
    if "space" in tree:
        return "sweep"
    of_task = {*TaskSpec.model_fields}.difference(StreamSpec.model_fields)
    return "task" if len(of_task.intersection(tree)) > 1 or "kind" in tree else None


def check_file_type(file: str, tree: Any, wanted: FileType) -> None:
    """Raise `StreamFileError` with one sentence if a file is of another type; do nothing if its type is not certain."""
    found = type_of(tree)
    if found is None or found == wanted:
        return
    what, command = _WHAT[found]
    of_command = command.format(path=quoted(file))
    raise StreamFileError([f"{file}: this is {what}, but {_NAMES[wanted]} is expected here; {of_command}"])
