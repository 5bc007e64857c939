"""Recognises a YAML file of another kind than the command needs, so that one sentence says which command takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from continual_petl.errors import StreamFileError, quoted
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec

FileKind = Literal["stream", "task", "sweep"]
_NAMES: Mapping[FileKind, str] = {"stream": "a stream", "task": "one task", "sweep": "a sweep"}


def kind_of(tree: Any) -> FileKind | None:
    """Return what the plain data of a YAML file describes, judging by the keys that only one kind of file has."""
    if not isinstance(tree, Mapping):
        return None
    if "tasks" in tree:
        return "stream"
    if "space" in tree:
        return "sweep"
    of_task = {*TaskSpec.model_fields}.difference(StreamSpec.model_fields)
    return "task" if len(of_task.intersection(tree)) > 1 or "kind" in tree else None


def check_kind(file: str, tree: Any, wanted: FileKind) -> None:
    """Raise `StreamFileError` with one sentence if a file is of another kind; do nothing if its kind is not certain."""
    found = kind_of(tree)
    if found is None or found == wanted:
        return
    path = quoted(file)
    command = {
        "stream": f"`continual-petl run {path}` learns it",
        "task": f"`continual-petl learn RUN {path}` adds it to a run, and a stream lists it under tasks",
        "sweep": f"`continual-petl sweep STREAM {path}` tries its settings on a stream",
    }[found]
    raise StreamFileError(
        [f"{file}: this is the file of {_NAMES[found]}, but {_NAMES[wanted]} is expected here; {command}"]
    )
