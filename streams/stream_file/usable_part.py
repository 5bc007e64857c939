"""Remove the keys with mistakes from a stream file, so that all other keys are checked in the same pass.

A task is left out entirely if it has a mistake in a key that determines its rows or how they are read: with the default of
that key, it would be rejected for reasons that have nothing to do with the file.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from continual_petl._strict_model import StrictModel
from continual_petl.errors import did_you_mean
from continual_petl.streams.schema.consistency import KeyPath
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec

_OF_TASK = {"bank", "training", "metric", "pooling", "probe", "generation", "max_target_length", "split"}
"""Keys of a task that do not affect the meaning of its rows."""
_OF_STREAM = {"bank", "training", "trainer", "evaluate", "probe", "protocol", "seed"}
_NO_TASK = {"name": "none", "kind": "classification", "data": {"train": []}}
"""Placeholder for a stream whose tasks all have mistakes, since a stream cannot be empty; it has no number in the file."""


@dataclass(frozen=True)
class UsablePart:
    """The stream without the keys that have mistakes."""

    spec: StreamSpec
    numbers: tuple[int, ...]
    """For each task, its 0-based number in the file."""

    def without_copies(self) -> UsablePart:
        """Return this part without local copies of data; see `StreamSpec.without_copies`."""
        return replace(self, spec=self.spec.without_copies())


def usable_part(tree: dict[str, Any], wrong: Iterable[KeyPath]) -> UsablePart | None:
    """Return the stream without the keys that have mistakes; None if too little is left.

    Args:
        tree: the plain data of the file.
        wrong: the keys with mistakes.
    """
    left, without = copy.deepcopy(tree), set()
    tasks, numbers = left.get("tasks"), list[int]()
    for path in wrong:
        match path:
            case ("tasks", int(number), str(key), *_) if key in _OF_TASK or _is_misspelt(key, TaskSpec, _OF_TASK):
                if isinstance(tasks, list) and number < len(tasks) and isinstance(tasks[number], dict):
                    tasks[number].pop(key, None)
            case ("tasks", int(number), *_):
                without.add(number)
            case (str(key), *_) if key in _OF_STREAM or _is_misspelt(key, StreamSpec, _OF_STREAM):
                left.pop(key, None)
            case ("backbone", str(key), *_) if key != "name" and isinstance(left.get("backbone"), dict):
                left["backbone"].pop(key, None)
            case ("name", *_):
                left["name"] = "unnamed"
            case _:
                return None
    if isinstance(tasks, list):
        numbers = [number for number in range(len(tasks)) if number not in without]
        left["tasks"] = [tasks[number] for number in numbers] or [_NO_TASK] * bool(tasks)
    try:
        return UsablePart(StreamSpec.checked(left), tuple(numbers))
    except ValidationError:
        return None


def usable_task(tree: dict[str, Any], wrong: Iterable[KeyPath]) -> UsablePart | None:
    """Return the task of a file as a stream, without the keys that have mistakes; None if too little is left."""
    stream = {"name": "unnamed", "backbone": "minilm", "tasks": [tree]}
    part = usable_part(stream, [("tasks", 0, *path) for path in wrong])
    return part if part is not None and part.numbers else None


def _is_misspelt(key: str, schema: type[StrictModel], harmless: Iterable[str]) -> bool:
    """Return whether a key is unknown but similar to one of the harmless keys, which do not affect a task's rows."""
    known = schema.model_fields
    return key not in known and any(f"{name!r}" in did_you_mean(key.casefold(), known) for name in harmless)
