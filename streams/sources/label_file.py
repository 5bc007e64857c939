"""Files of labels: JSON with the names of a task's classes in order."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

from continual_petl.errors import InputError, counted
from continual_petl.spelling import half_character
from continual_petl.streams.sources.checks import show

MAX_BYTES = 16 * 2**20
"""Maximum size of a file of labels, in bytes."""


def read_label_names(path: str | Path) -> tuple[str, ...]:
    """Read at least two different names: a JSON list, or the list under ``names`` of a JSON object.

    Raises:
        InputError: if the file is missing or holds something else.
    """
    # A stream file may come from anyone, and it names the file that is read here.
    is_special = os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    try:
        if is_special or os.stat(path).st_size > MAX_BYTES:
            what = "is a device, pipe or socket" if is_special else f"has more than {MAX_BYTES:,} bytes"
            raise InputError(f"labels: {path} {what}; give a JSON file with a list of names.")
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"labels: cannot read {path}: {error.strerror}; give a list of names, or a JSON file."
        ) from error
    except RecursionError:
        raise InputError(f"labels: {path} is nested too deeply; it must hold a list of names.") from None
    except ValueError as error:
        raise InputError(f"labels: {path} is not JSON: {error}; it must hold a list of names.") from error
    if isinstance(found, dict) and "names" in found:
        found = found["names"]
    if not isinstance(found, list) or not all(
        isinstance(name, str | int) and not isinstance(name, bool) for name in found
    ):
        raise InputError(f'labels: {path} holds {show(found)}; it must be a JSON list of names, such as ["no", "yes"].')
    names = tuple(str(name) for name in found)
    if bad := [name for name in names if not name or half_character(name)]:
        raise InputError(f"labels: {path} holds the name {bad[0]!r}; a name must be non-empty UTF-8 text.")
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if len(names) < 2 or twice:
        what = f"{', '.join(map(repr, twice))} more than once" if twice else counted(len(names), "name")
        raise InputError(f"labels: {path} holds {what}; it must be a JSON list of at least two different names.")
    return names


def names_of_labels(task: str, key: str, labels: tuple[str, ...] | str) -> tuple[str, ...]:
    """Return the labels of a task, which are in a file if they are a path; errors are about ``key`` of the task."""
    try:
        return labels if isinstance(labels, tuple) else read_label_names(labels)
    except InputError as error:
        raise InputError(f"task {task!r}, {error}", key=(key,)) from error
