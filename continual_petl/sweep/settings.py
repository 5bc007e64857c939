"""Applies and checks the settings of a task, given as dotted keys with values, and enumerates a grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any

from pydantic import BaseModel, ValidationError

from continual_petl.banks.config.spec import named_parents
from continual_petl.errors import InputError, counted, did_you_mean
from continual_petl.streams.schema.consistency import KeyPath, contradictions
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.stream_file.dump import without_unused_settings
from continual_petl.streams.stream_file.json_schema import cached_schema
from continual_petl.streams.stream_file.wording import show, word_errors
from continual_petl.sweep.spec import Range, SweepSpec, plain_values

TRIED = ("bank", "training", "pooling", "max_target_length", "generation")
"""Keys of a task, or parents of keys, that may be tried: they determine how it is learned, not what it is measured on."""
_MEASURED = (
    "data",
    "columns",
    "labels",
    "all_labels",
    "split",
    "metric",
    "limits",
    "validation",
    "probe",
    "name",
    "kind",
)
_MAX_LISTED = 5

Settings = Mapping[str, Any]


class Unfit(ValueError):
    """Settings that a task cannot have; ``problems`` are the reasons."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__("; ".join(self.problems))


def grid(spec: SweepSpec) -> list[dict[str, Any]]:
    """Return the settings of a grid in order: the last key of the space changes fastest."""
    lists = [plain_values(values) for values in spec.space.values() if not isinstance(values, Range)]
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
    if problems := contradictions(_tree(without_unused_settings(spec.model_copy(update={"tasks": (stub,)})))):
        raise Unfit([text for _, text in problems])
    return candidate


def alone(spec: StreamSpec, task: TaskSpec, seed: int) -> StreamSpec:
    """Return a stream of one task: a bank depends only on its task and the stream's seed, so it is learned alone.

    A trial never predicts rows without a task name, so no routing statistics are computed.
    """
    return without_unused_settings(spec.model_copy(update={"tasks": (task,), "seed": seed, "routing": "off"}))


def misfits(space: Mapping[str, Any], spec: StreamSpec, tasks: Sequence[TaskSpec]) -> list[tuple[KeyPath, str]]:
    """Return the keys and values of a space that are invalid for its tasks, with reasons; each value is checked separately.

    Args:
        space: the space of a sweep, or its plain data; parts of the wrong type are skipped here and reported by the schema.
        spec: the stream.
        tasks: the tasks of the stream that the sweep is for.
    """
    problems: dict[KeyPath, str] = {("space", key): text for key in space if (text := _misplaced(key))}
    for task in tasks:
        if problem := _bound(spec, task):
            problems[("space",)] = problem
    for key, values in space.items():
        if ("space", key) in problems:
            continue
        for place, value in _each(values):
            path = ("space", key, place)
            for task in tasks:
                if path not in problems and (text := _why_not(spec, task, {key: value})):
                    problems[path] = f"{text} (task {task.name!r})"
    return [*problems.items()]


def unfit_combinations(sweep: SweepSpec, spec: StreamSpec, tasks: Sequence[TaskSpec]) -> list[tuple[KeyPath, str]]:
    """Return combinations of a grid that a task cannot have, although each value is valid by itself."""
    if sweep.sampler != "grid" or len(sweep.space) == 1:
        return []
    problems: list[str] = []
    for task in tasks:
        for settings in grid(sweep):
            if text := _why_not(spec, task, settings):
                problems.append(f"{described(settings)}: {text} (task {task.name!r})")
            if len(problems) == _MAX_LISTED:
                break
    return [(("space",), "these cannot be combined: " + "; ".join(problems))] if problems else []


def _why_not(spec: StreamSpec, task: TaskSpec, settings: Settings) -> str:
    try:
        with_settings(spec, task, settings)
    except Unfit as error:
        return str(error)
    return ""


def _each(values: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(values, Range):
        yield from (("low", values.low), ("high", values.high))
    elif isinstance(values, dict):
        ends = ((key, values.get(key)) for key in ("low", "high"))
        yield from ((key, end) for key, end in ends if isinstance(end, int | float))
    elif isinstance(values, list | tuple):
        yield from enumerate(plain_values(values))


def described(settings: Settings) -> str:
    """Describe settings on one line."""
    return ", ".join(f"{key} {_in_words(value)}" for key, value in settings.items())


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_in_words(below)}" for key, below in value.items()) + "}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _misplaced(key: str) -> str:
    top = key.split(".")[0]
    if not all(key.split(".")) or key == "training":
        return "this is not a key: write names with single dots between them, such as training.epochs"
    if top in TRIED:
        return ""
    if top in ("max_length", "backbone"):
        return "belongs to the backbone, which all tasks share: set it in the stream, and sweep once for each value"
    if top in _MEASURED:
        return f"decides what a task is measured on, so scores could not be compared; allowed: {', '.join(TRIED)}"
    return f"is not a key that can be tried{did_you_mean(top, TRIED)}; allowed: {', '.join(TRIED)} and keys below them"


def _bound(spec: StreamSpec, task: TaskSpec) -> str:
    """Describe how a task depends on others, if it does: a sweep learns each task alone."""
    bank = task.bank or spec.bank
    if bank.start_from is not None:
        named = named_parents(bank.start_from)
        of = f"the bank of {named[0]!r}" if len(named) == 1 else f"earlier banks ({bank.start_from})"
        return (
            f"task {task.name!r} starts from {of}, but a sweep learns each task alone: sweep the others with --task, or "
            "remove start_from from the stream"
        )
    if bank.fuse is not None:
        return (
            f"task {task.name!r} reads the banks of {', '.join(map(repr, bank.fuse))}, but a sweep learns each task alone: "
            "sweep the others with --task"
        )
    if not bank.inherits and bank.resolve().scope == "shared":
        return (
            f"task {task.name!r} continues the bank of the task before it (scope: shared), but a sweep learns each task "
            "alone: sweep with scope: task"
        )
    return ""


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *above, last = key.split(".")
    node: Any = tree
    for depth, part in enumerate(above, 1):
        below = node.get(part) if isinstance(node, dict) else _entry(node, part)
        if below is None and isinstance(node, dict):
            below = node[part] = {}
        if not isinstance(below, dict | list):
            raise Unfit([f"{'.'.join(above[:depth])} is {show(below)} and has no keys below it"])
        node = below
    if isinstance(node, dict):
        node[last] = value
    else:
        _entry(node, last)
        node[int(last)] = value


def _entry(node: list[Any], part: str) -> Any:
    if not part.isdecimal() or int(part) >= len(node):
        raise Unfit(
            [f"got {part!r}; this list has {counted(len(node), 'entry', 'entries')}, and the first has index 0"]
        )
    return node[int(part)]


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json", exclude_unset=True) if isinstance(value, BaseModel) else value


def _tree(spec: StreamSpec) -> dict[str, Any]:
    """Return the input of `contradictions`."""
    return {
        "training": {key: getattr(spec.training, key) for key in spec.training.model_fields_set},
        "trainer": spec.trainer,
        "tasks": [{"name": task.name, "training": task.training.given()} for task in spec.tasks],
    }


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
