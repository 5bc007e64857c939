"""What is left of a stream file once the keys with mistakes are taken out, so that the rest is checked in the same pass.

A task with a mistake in what says where its rows are and how they are read is left out as a whole: checked with a default in
that place, it would be refused for what nobody wrote.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from continual_petl.streams.schema.consistency import KeyPath
from continual_petl.streams.schema.stream_spec import StreamSpec

_OF_TASK = {"bank", "training", "metric", "pooling", "probe", "generation", "max_target_length"}
"""Keys of a task without which its rows mean the same."""
_OF_STREAM = {"bank", "training", "trainer", "evaluate", "probe", "seed"}


def usable_part(tree: dict[str, Any], wrong: Iterable[KeyPath]) -> StreamSpec | None:
    """Return the stream without the keys that have mistakes; None if too little is left.

    Args:
        tree: the plain data of the file.
        wrong: the keys with mistakes.
    """
    left, without = copy.deepcopy(tree), set()
    tasks = left.get("tasks")
    for path in wrong:
        match path:
            case ("tasks", int(number), str(key), *_) if key in _OF_TASK:
                if isinstance(tasks, list) and number < len(tasks) and isinstance(tasks[number], dict):
                    tasks[number].pop(key, None)
            case ("tasks", int(number), *_):
                without.add(number)
            case (str(key), *_) if key in _OF_STREAM:
                left.pop(key, None)
            case ("backbone", str(key), *_) if key != "name" and isinstance(left.get("backbone"), dict):
                left["backbone"].pop(key, None)
            case ("name", *_):
                left["name"] = "unnamed"
            case _:
                return None
    if isinstance(tasks, list):
        left["tasks"] = [task for number, task in enumerate(tasks) if number not in without]
    try:
        return StreamSpec.model_validate(left)
    except ValidationError:
        return None
