"""Reads a sweep file; applies and checks the settings of a task, given as dotted keys with values; enumerates a grid."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import islice, product
from typing import Any

from pydantic import BaseModel, ValidationError

from continual_petl.errors import InputError, StreamFileError, did_you_mean
from continual_petl.streams.schema.consistency import KeyPath
from continual_petl.streams.schema.stream_spec import RoutingSpec, StreamSpec, TaskSpec
from continual_petl.streams.stream_file.dump import contradictions_of, without_unused_settings
from continual_petl.streams.stream_file.file_types import YAML, check_file_type, refuse_other_type
from continual_petl.streams.stream_file.json_schema import cached_schema
from continual_petl.streams.stream_file.key_locations import KeyLocations
from continual_petl.streams.stream_file.wording import show, word_errors
from continual_petl.streams.stream_file.yaml_file import read_text, validate
from continual_petl.streams.stream_file.yaml_nodes import parse
from continual_petl.sweep.spec import Range, SweepSpec

TRIED = ("bank", "training", "pooling", "max_target_length", "generation")
"""Keys of a task, or parents of keys, that may be tried: they determine how it is learned, not what it is measured on."""
_MAX_LISTED = 5

Settings = Mapping[str, Any]


class Unfit(ValueError):
    """Settings that a task cannot have; ``problems`` are the reasons."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__("; ".join(self.problems))


def grid(spec: SweepSpec) -> list[dict[str, Any]]:
    """Return the settings of a grid in order: the last key of the space changes fastest."""
    lists = [values for values in spec.space.values() if not isinstance(values, Range)]
    combinations = islice(product(*lists), spec.num_trials)
    return [dict(zip(spec.space, values, strict=True)) for values in combinations]


def with_settings(spec: StreamSpec, task: TaskSpec, settings: Settings) -> TaskSpec:
    """Return a task with these settings in place of its own and its stream's.

    Raises:
        Unfit: if the task cannot have them.
    """
    bank = task.bank or spec.bank
    tree: dict[str, Any] = {
        "name": task.name,
        "kind": task.kind,
        "data": "rows",  # already validated, and perhaps large
        "bank": bank.model_dump(mode="json", exclude_none=True),
        "training": task.training.given(),
        **{key: _plain(getattr(task, key)) for key in TRIED[2:] if key in task.model_fields_set},
    }
    for key, value in settings.items():
        _put(tree, key, value)
    try:
        found = TaskSpec.checked(tree)
    except ValidationError as error:
        errors = word_errors(error, cached_schema()["$defs"]["TaskSpec"])
        raise Unfit([text for _, text in errors]) from None
    changed = {key.split(".")[0] for key in settings}
    candidate = task.model_copy(update={key: getattr(found, key) for key in changed})
    stub = candidate.model_copy(update={"data": "rows"})
    if problems := contradictions_of(without_unused_settings(spec.model_copy(update={"tasks": (stub,)}))):
        raise Unfit([text for _, text in problems])
    return candidate


def alone(spec: StreamSpec, task: TaskSpec, seed: int) -> StreamSpec:
    """Return a stream of one task: a bank depends only on its task and the stream's seed, so it is learned alone.

    A trial never predicts rows without a task name, so no routing statistics are computed.
    """
    return without_unused_settings(
        spec.model_copy(update={"tasks": (task,), "seed": seed, "routing": RoutingSpec(statistics="off")})
    )


def misfits(sweep: SweepSpec, spec: StreamSpec, tasks: Sequence[TaskSpec]) -> list[tuple[KeyPath, str]]:
    """Return what the tasks cannot have, with reasons: keys, values by themselves, otherwise combinations of a grid."""
    problems: dict[KeyPath, str] = {("space", key): text for key in sweep.space if (text := _misplaced(key))}
    for task in tasks:
        if problem := _bound(spec, task):
            problems[("space",)] = problem
    for key, values in sweep.space.items():
        if ("space", key) in problems:
            continue
        ends = (("low", values.low), ("high", values.high)) if isinstance(values, Range) else enumerate(values)
        for place, value in ends:
            path = ("space", key, place)
            for task in tasks:
                if path not in problems and (text := _why_not(spec, task, {key: value})):
                    problems[path] = f"{text} (task {task.name!r})"
    if problems or sweep.sampler != "grid" or len(sweep.space) == 1:
        return [*problems.items()]
    tried = ((task, settings) for task in tasks for settings in grid(sweep))
    why_not = ((task, settings, _why_not(spec, task, settings)) for task, settings in tried)
    found = [f"{described(settings)}: {text} (task {task.name!r})" for task, settings, text in why_not if text]
    listed = [*found[:_MAX_LISTED], *([f"and {len(found) - _MAX_LISTED} more"] if len(found) > _MAX_LISTED else [])]
    return [(("space",), f"these cannot be combined: {'; '.join(listed)}")] if found else []


def _why_not(spec: StreamSpec, task: TaskSpec, settings: Settings) -> str:
    try:
        with_settings(spec, task, settings)
    except Unfit as error:
        return str(error)
    return ""


def described(settings: Settings) -> str:
    """Describe settings on one line."""
    return ", ".join(f"{key} {_in_words(value)}" for key, value in settings.items())


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_in_words(below)}" for key, below in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_in_words, value)) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _misplaced(key: str) -> str:
    top = key.split(".")[0]
    if not all(key.split(".")) or key == "training":
        return "this is not a key: write names with single dots between them, such as training.epochs"
    if top in TRIED:
        return ""
    return (
        f"is not a key that can be tried{did_you_mean(top, TRIED)}; allowed: {', '.join(TRIED)} and keys below them. To "
        "compare scores, all trials of a task are measured on the same rows with the same backbone"
    )


def _bound(spec: StreamSpec, task: TaskSpec) -> str:
    """Describe how a task depends on others, if it does: a sweep learns each task alone."""
    bank = task.bank or spec.bank
    depends = {
        "start_from": bank.start_from,
        "fuse": bank.fuse,
        "scope": "shared" if not bank.inherits and bank.resolve().scope == "shared" else None,
    }
    found = ", ".join(f"{key}: {_in_words(value)}" for key, value in depends.items() if value is not None)
    if not found:
        return ""
    return (
        f"the bank of task {task.name!r} depends on other tasks ({found}), but a sweep learns each task alone: remove this "
        "from the stream, or sweep the other tasks with --task"
    )


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *above, last = key.split(".")
    for depth, part in enumerate(above, 1):
        if tree.get(part) is None:
            tree[part] = {}
        if not isinstance(tree[part], dict):
            raise Unfit([f"{'.'.join(above[:depth])} is {show(tree[part])} and has no keys below it"])
        tree = tree[part]
    tree[last] = value


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json", exclude_unset=True) if isinstance(value, BaseModel) else value


def chosen_tasks(spec: StreamSpec, names: Sequence[str]) -> list[TaskSpec]:
    """Return the tasks with these names, in the order of the stream; all tasks if no name is given.

    Raises:
        InputError: if the stream has no task with one of these names.
    """
    known = [task.name for task in spec.tasks]
    for name in names:
        if name not in known:
            raise InputError(
                f"--task {name}: the stream {spec.name!r} has no such task{did_you_mean(name, known)}; its tasks are "
                f"{', '.join(known)}"
            )
    return [task for task in spec.tasks if not names or task.name in names]


def load_sweep(
    path: str | os.PathLike[str],
    stream: StreamSpec | None = None,
    *,
    tasks: tuple[TaskSpec, ...] | None = None,
    trials: int | None = None,
) -> SweepSpec:
    """Read and check a sweep file.

    Args:
        path: the YAML file.
        stream: the stream whose tasks every value has to fit; None if this is checked later.
        tasks: the stream's tasks that the sweep is for; None means all.
        trials: overrides the value in the file.

    Raises:
        StreamFileError: listing all mistakes of single keys and their values; once these are right, all contradictions
            between keys; and once the file is right by itself, all mistakes about the tasks.
    """
    file = os.fspath(path)
    refuse_other_type(file, "the file of a sweep", YAML)
    parsed = parse(read_text(file, "sweep"))
    check_file_type(file, parsed.tree, "sweep")
    places = KeyLocations(file, parsed.lines)
    if not isinstance(parsed.tree, dict) and not parsed.problems:
        found = "an empty file" if parsed.tree is None else show(parsed.tree)
        raise StreamFileError([f"{file}:1: got {found}; a sweep needs at least space: {{bank.bottleneck: [8, 64]}}"])
    for line, where, text in parsed.problems:
        places.report(where, text, line=line)
    if not isinstance(parsed.tree, dict):
        raise StreamFileError(places.problems)
    tree: dict[str, Any] = parsed.tree
    if trials is not None:
        tree["trials"] = trials
        places.replace(("trials",), "--trials")
    spec = validate(SweepSpec, tree, places)
    for key, text in misfits(spec, stream, tasks or stream.tasks) if stream is not None else ():
        places.report(key, text)
    if places.problems:
        raise StreamFileError(places.problems)
    return spec
