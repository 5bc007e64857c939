"""Dotted overrides from the command line, applied to the plain data of a stream file.

``training.learning_rate`` names a nested key, ``tasks.agnews.training.epochs`` selects a task by name,
``tasks.0.training.epochs`` selects it by number, and ``tasks.*.limits.train`` selects all tasks. Values are parsed as in
the file.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from continual_petl.banks.config.spec import AUTO
from continual_petl.errors import counted, did_you_mean, known_names
from continual_petl.spelling import half_character
from continual_petl.streams.schema.consistency import KeyPath
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.stream_file.key_locations import KeyLocations, task_names
from continual_petl.streams.stream_file.size_limits import MAX_DEPTH
from continual_petl.streams.stream_file.wording import show
from continual_petl.streams.stream_file.yaml_nodes import parse, plain_scalar

_BARE = {"backbone": "name", "bank": "preset", "routing": "statistics", "schedule": "name"}
"""Keys whose value may be a bare name, and the key below them that the name sets."""
_DEFAULTS = {"bank": {"preset": "houlsby"}}


def apply_overrides(tree: dict[str, Any], overrides: Sequence[tuple[str, str]], places: KeyLocations) -> None:
    """Set each override in ``tree``, in order; overrides that cannot be set are reported to ``places``."""
    for key, text in overrides:
        option = f"--{key.removeprefix('--')}"
        try:
            paths = _key_paths(option[2:], tree)
            value = _value(text)
            for path in paths:
                _set(tree, path, copy.deepcopy(value), option, places)
        except _Unusable as error:
            places.report_option(option, str(error))


def unreached(spec: StreamSpec, overrides: Sequence[tuple[str, str]]) -> list[str]:
    """Return a sentence for each override of a stream setting that some tasks ignore, because they set their own value.

    Args:
        spec: the stream, with the overrides applied.
        overrides: the overrides that were applied.
    """
    listed: dict[str, None] = {}
    for option, text in overrides:
        top, _, below = option.removeprefix("--").partition(".")
        if top not in ("training", "bank"):
            continue
        given = _value(text) if top == "training" and not below else {below.split(".")[0]: None}
        for key in given if isinstance(given, dict) else ():
            path = f"{top}.{key}" if top == "training" else option.removeprefix("--")
            if any(
                other.removeprefix("--").startswith("tasks.") and other.endswith(f".{path}") for other, _ in overrides
            ):
                continue  # the user gave overrides for both
            own = [task.name for task in spec.tasks if _differs(spec, task, top, key)]
            if own:
                listed[
                    f"--{path} does not apply to {known_names(own)}: a task's own setting takes precedence; "
                    f"use --tasks.{own[0]}.{path} for one task, --tasks.*.{path} for all"
                ] = None
    return [*listed]


def _differs(spec: StreamSpec, task: TaskSpec, top: str, key: str) -> bool:
    """Return whether a task sets a value that differs from the stream's."""
    if top == "bank":
        return task.bank is not None and task.bank != spec.bank
    own = task.training.given()
    return key in own and own[key] != getattr(spec.training, key)


class _Unusable(Exception):
    """An override cannot be applied; the message says why."""


def _key_paths(key: str, tree: dict[str, Any]) -> list[KeyPath]:
    """Return the key path for ``key``; with ``tasks.*``, one for every task."""
    parts = key.split(".")
    if not all(parts):
        raise _Unusable("this is not a key: write names separated by single dots, such as --training.epochs")
    if parts[:2] != ["tasks", "*"]:
        return [_key_path(key, parts, tree)]
    if len(parts) == 2:
        raise _Unusable("this is not a key: name one below tasks.*, such as --tasks.*.limits.train")
    if not (names := task_names(tree)):
        raise _Unusable("there are no tasks here")
    return [("tasks", number, *parts[2:]) for number in range(len(names))]


def _key_path(key: str, parts: list[str], tree: dict[str, Any]) -> KeyPath:
    if parts[0] != "tasks" or len(parts) == 1:
        return tuple(parts)
    rest, names = key.removeprefix("tasks."), task_names(tree)
    # A name may contain dots, so use the longest match.
    fitting = [name for name in names if name and (rest == name or rest.startswith(f"{name}."))]
    by_number = _number(parts[1], len(names))
    if not fitting:
        if by_number is None:
            raise _Unusable(_no_such_task(parts[1], names))
        return ("tasks", by_number, *parts[2:])
    name = max(fitting, key=len)
    number = names.index(name)
    if by_number not in (None, number):
        raise _Unusable(f"{parts[1]} is both the name of tasks.{number} and the number of task {names[by_number]!r}")
    below = rest[len(name) + 1 :]
    return ("tasks", number, *(below.split(".") if below else ()))


def _number(part: str | int, length: int) -> int | None:
    """Parse a part of a key as an index into a list of ``length``; None if it is not a valid index."""
    text = str(part)
    number = int(text) if text.isdecimal() and len(text) < 10 else length
    return number if number < length else None


def _no_such_task(wanted: str, names: list[str | None]) -> str:
    known = [name for name in names if name]
    hint = did_you_mean(wanted, known)
    listed = ", ".join(f"{number} {name or '(without a name)'}" for number, name in enumerate(names[:30]))
    more = f", and {len(names) - 30} more" if len(names) > 30 else ""
    return f"there is no task {show(wanted)}{hint}; the tasks, by number and name, are: {listed or 'none'}{more}"


def _value(text: str) -> Any:
    """Parse a value: quoted text, lists and mappings as YAML, everything else as one unquoted scalar."""
    stripped = text.strip()
    if (half := half_character(text)) is not None:
        raise _Unusable(f"got {show(text)}: {half} is not a character; write UTF-8")
    if not stripped.startswith(("[", "{", "'", '"')):
        try:
            return plain_scalar(stripped) if stripped else ""
        except ValueError as error:
            raise _Unusable(f"got {show(text)}, which is {error}: give a smaller number, or text in quotes") from None
    parsed = parse(stripped)
    if parsed.problems:
        why = "; ".join(problem for _, _, problem in parsed.problems)
        raise _Unusable(f"got {show(text)}: {why}. To give it as plain text, put it in extra quotes")
    return parsed.tree


def _set(tree: dict[str, Any], path: KeyPath, value: Any, option: str, places: KeyLocations) -> None:
    # In a file, the document itself also counts as a level.
    if 1 + len(path) + _depth(value) > MAX_DEPTH:
        raise _Unusable(f"this is nested more than {MAX_DEPTH} levels deep")
    if half_character(".".join(map(str, path))) is not None:
        raise _Unusable("the key is not UTF-8")
    node: Any = tree
    for depth, part in enumerate(path[:-1]):
        here = path[: depth + 1]
        child = _child(node, part, path[:depth])
        if isinstance(child, str) and part in _BARE and here[0] != "trainer":
            child = {_BARE[part]: child}
        elif child is None:
            # A bank that starts from named banks takes its settings from there, not from the defaults.
            whole = depth == 0 and (path[-1] != "start_from" or value == AUTO)
            child = dict(_DEFAULTS.get(str(part), {})) if whole else {}
            places.replace(here, option)
        if not isinstance(child, dict | list):
            raise _Unusable(f"{'.'.join(map(str, here))} is {show(child)} in the file and has no keys below it to set")
        node[_index(node, part)] = child
        node = child
    _child(node, path[-1], path[:-1])
    node[_index(node, path[-1])] = value
    places.replace(path, option)


def _child(node: Any, part: str | int, above: KeyPath) -> Any:
    if isinstance(node, dict):
        return node.get(str(part))
    number = _number(part, len(node))
    if number is None:
        place, entries = ".".join(map(str, above)), counted(len(node), "entry", "entries")
        raise _Unusable(f"{place} is a list with {entries}, so the next part must be 0 to {len(node) - 1}")
    return node[number]


def _depth(value: Any) -> int:
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if below is None else 1 + max(map(_depth, below), default=0)


def _index(node: Any, part: str | int) -> str | int:
    return str(part) if isinstance(node, dict) else int(part)
