"""Collect all mistakes in a stream file at once: in the file itself, and in the data and the backbone it refers to.

Nothing here needs the backbone's weights or the network, because a misspelt key should be reported quickly. For the same
reason, torch is imported only where a model's configuration omits its maximum length, and `datasets` only where nothing
else can read the rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from glob import glob, has_magic
from pathlib import Path

from continual_petl.backbones.available import MissingBackboneError, check_available
from continual_petl.backbones.max_length import check_max_length
from continual_petl.engine.checks.problems import Problems
from continual_petl.errors import InputError, Key, StoreError, StreamFileError, about
from continual_petl.store.store import Store
from continual_petl.streams.schema.backbone_spec import BackboneSpec
from continual_petl.streams.schema.data_spec import DataSpec, Rows, is_near
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.sources.read import read_splits
from continual_petl.streams.stream_file.places import Places
from continual_petl.streams.stream_file.yaml_file import PartlyUsableError

CHECKED_TASKS = 20
"""Maximum number of tasks whose data is read in advance."""


def all_mistakes(error: PartlyUsableError, folder: Path) -> StreamFileError:
    """Return the mistakes in a stream file and in everything it refers to: data, columns, labels, lengths, backbone.

    Args:
        error: the error raised while reading the file.
        folder: the run folder; tasks already learned there are not checked again.
    """
    if error.rest is None:
        return error
    try:
        learned = set(Store(folder).tasks)
    except StoreError:
        return error  # a damaged run is reported once the stream file is correct
    # Tasks are numbered as in the file, since tasks with mistakes are missing from the parsed stream.
    left = zip(error.rest.numbers, error.rest.spec.tasks, strict=False)
    new = [(("tasks", number), task) for number, task in left if task.name not in learned]
    return StreamFileError(error.places.with_more(named_mistakes(error.rest.spec, new).found))


def mistakes_of_task(places: Places, task: TaskSpec, spec: StreamSpec) -> StreamFileError:
    """Return the mistakes in one task's file and in its data.

    Args:
        places: the lines of the keys in the file, with the mistakes found in it.
        task: the task, without the keys that have mistakes.
        spec: the stream of the run that will learn it.
    """
    problems = Problems()
    _check_near(spec, [((), task)], problems)
    return StreamFileError(places.with_more(problems.found))


def named_mistakes(
    spec: StreamSpec, tasks: Iterable[tuple[Key, TaskSpec]], *, missing: MissingBackboneError | None = None
) -> Problems:
    """Return the problems with the backbone and the data that can be found without loading weights.

    Args:
        spec: the stream.
        tasks: tasks of the stream, each with its key in the file.
        missing: the error if the backbone has been looked up before and is missing, so that the Hub is queried only once.
    """
    problems = Problems()
    _check_named(spec.backbone, problems, missing)
    _check_near(spec, tasks, problems)
    return problems


def _check_near(spec: StreamSpec, tasks: Iterable[tuple[Key, TaskSpec]], problems: Problems) -> None:
    near = [each for each in tasks if is_near(spec.resolved_data(each[1]))]
    for key, task in near[:CHECKED_TASKS]:
        with problems.collected(key):
            data = spec.resolved_data(task)
            if is_missing(data):
                with about("data"):
                    read_splits(task.name, data, task.columns, kind=task.kind, limits=task.limits, light=True)
            from continual_petl.streams.preparation.prepare import check_data  # imports numpy

            check_data(spec, task, light=True)


def is_missing(data: str | DataSpec | Rows) -> bool:
    """Return whether any file that a task's ``data`` refers to is missing."""
    paths = map(os.path.expanduser, _named(data)) if is_near(data) else ()
    return any(not os.path.exists(path) and not (has_magic(path) and glob(path, recursive=True)) for path in paths)


def _named(data: str | DataSpec | Rows) -> list[str]:
    if isinstance(data, str):
        return [data]
    if not isinstance(data, DataSpec) or data.path == "embedded":
        return []
    if data.local is not None or data.data_files is None:
        return [data.local or data.data_dir or data.path]
    given = data.data_files.values() if isinstance(data.data_files, Mapping) else [data.data_files]
    return [path for each in given for path in ([each] if isinstance(each, str) else each)]


def _check_named(backbone: BackboneSpec, problems: Problems, missing: MissingBackboneError | None) -> None:
    """Check a backbone's name and maximum length without loading its weights."""
    with problems.collected(("backbone",)), about("name"):
        try:
            if missing is not None:
                raise missing
            check_available(backbone.name, backbone.revision)
        except MissingBackboneError as error:
            check_meant(backbone, error.near, problems)
            raise
        if backbone.max_length is not None and not backbone.remote_code:
            check_max_length(backbone.name, backbone.revision, backbone.max_length)


def check_meant(backbone: BackboneSpec, meant: str | None, problems: Problems) -> None:
    """Check the maximum length with the backbone that the user probably meant, to report both mistakes at once."""
    if meant is None or backbone.max_length is None:
        return
    try:
        check_max_length(meant, None, backbone.max_length)
    except InputError as error:
        if error.key:  # without a key, the other backbone could not be read, which is not a mistake in the stream
            problems.found.append((("backbone", *error.key), str(error)))
