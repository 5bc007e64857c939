"""Replace each entry of a stream that has ``split`` with the tasks that it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from continual_petl.errors import InputError
from continual_petl.streams.protocols.splitting import split_labels, split_names
from continual_petl.streams.schema.consistency import KeyPath
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec, TrainingOverride
from continual_petl.streams.sources.label_file import read_label_names
from continual_petl.streams.stream_file.size_limits import MAX_ENTRIES, MAX_TASKS

_LONGEST_NAME = 64


@dataclass(frozen=True)
class Expanded:
    """A stream without ``split``."""

    spec: StreamSpec
    entries: tuple[int, ...]
    """For each of its tasks, the 0-based number of its entry in the file."""
    problems: tuple[tuple[KeyPath, str], ...] = ()
    """Entries that cannot be split, and why; they are left unchanged."""


def expand_splits(spec: StreamSpec) -> Expanded:
    """Replace each entry that has ``split`` with its tasks; the only files read are label files."""
    if all(task.split is None for task in spec.tasks):
        return Expanded(spec, tuple(range(len(spec.tasks))))
    tasks: list[TaskSpec] = []
    entries: list[int] = []
    problems: list[tuple[KeyPath, str]] = []
    for number, entry in enumerate(spec.tasks):
        try:
            own = _tasks_of(spec, entry)
        except InputError as error:
            problems.append((("tasks", number, *error.key), str(error)))
            own = [entry]
        tasks += own
        entries += [number] * len(own)
    problems += _name_clashes(tasks, entries)
    if len(tasks) > MAX_TASKS:
        text = (
            f"the stream would have {len(tasks):,} tasks, but at most {MAX_TASKS:,} are allowed: raise classes_per_task"
        )
        last = max(number for number, entry in enumerate(spec.tasks) if entry.split is not None)
        problems.append((("tasks", last, "split"), text))
    return Expanded(spec.model_copy(update={"tasks": tuple(tasks)}), tuple(entries), tuple(problems))


def _tasks_of(spec: StreamSpec, entry: TaskSpec) -> list[TaskSpec]:
    """Return the tasks that an entry stands for; raises `InputError` if its labels cannot be read or divided."""
    if entry.split is None:
        return [entry]
    labels = spec.resolved_labels(entry)
    assert labels is not None  # validated
    if isinstance(labels, str):
        try:
            labels = read_label_names(labels)
        except InputError as error:
            raise InputError(str(error), key=("labels",)) from error
    try:
        groups = split_labels(labels, entry.split.classes_per_task, entry.split.seed)
    except ValueError as error:
        raise InputError(str(error), key=("split",)) from error
    _check_size(entry, len(groups), len(labels))
    names = split_names(entry.name, len(groups))
    if len(names[-1]) > _LONGEST_NAME:
        raise InputError(
            f"its tasks would be named {names[-1]!r}, which is longer than {_LONGEST_NAME} characters: choose a shorter name",
            key=("name",),
        )
    return [
        entry.model_copy(
            update={
                "name": name,
                "labels": own,
                "all_labels": entry.labels if entry.all_labels is None else entry.all_labels,
                "split": None,
                "training": _training(entry.training, own, labels),
            }
        )
        for name, own in zip(names, groups, strict=True)
    ]


def _check_size(entry: TaskSpec, num_tasks: int, num_labels: int) -> None:
    """Check that the tasks can be written into the file of a run, where each has its own copy of the entry."""
    rows = sum(map(len, entry.data.values())) if isinstance(entry.data, dict) else 0
    for key, size, advice in (
        (
            "labels",
            0 if isinstance(entry.labels, str) else num_labels,
            "write the labels into a JSON file and name it here",
        ),
        ("data", rows, "put the rows into files"),
    ):
        if size * num_tasks > MAX_ENTRIES // 2:
            raise InputError(
                f"split makes {num_tasks:,} tasks, and a file with {size:,} {'rows' if key == 'data' else key} in each of "
                f"them is too large: {advice}, or raise classes_per_task",
                key=(key,),
            )


def _training(training: TrainingOverride, own: tuple[str, ...], labels: tuple[str, ...]) -> TrainingOverride:
    """Return the settings of one of the tasks: class weights are kept for its own labels and for unknown labels."""
    weights = training.class_weights
    if not isinstance(weights, Mapping):
        return training
    others = set(labels).difference(own)
    kept = {label: weight for label, weight in weights.items() if label not in others}
    given = training.given() | {"class_weights": kept or None}
    return TrainingOverride.model_validate(given)


def _name_clashes(tasks: list[TaskSpec], entries: list[int]) -> list[tuple[KeyPath, str]]:
    """Return the entries with a task whose name another task already has."""
    seen: dict[str, int] = {}
    problems: dict[int, tuple[KeyPath, str]] = {}
    for task, entry in zip(tasks, entries, strict=True):
        other = seen.setdefault(task.name.casefold(), entry)
        if other != entry:
            text = f"split makes a task {task.name!r}, which is also the name of a task in tasks.{other}: rename one of them"
            problems.setdefault(entry, (("tasks", entry, "name"), text))
    return [*problems.values()]
