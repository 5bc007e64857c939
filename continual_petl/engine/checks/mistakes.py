"""Collect all mistakes in a stream file at once: in the file itself, and in the data and the backbone it refers to.

Nothing here needs the backbone's weights or the network, because a misspelt key should be reported quickly. For the same
reason, torch is imported only where a model's configuration omits its maximum length, and `datasets` only for data sets on
the Hub. If a stream file has no mistakes of its own, and no file is missing, it is checked by `preflight`, which also finds
those that only the model reveals: a bank larger than a layer, a kind that the model cannot learn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from continual_petl.backbones.available import MissingBackboneError, check_available
from continual_petl.backbones.max_length import check_max_length
from continual_petl.errors import InputError, Key, StoreError, StreamFileError, about, raise_problems
from continual_petl.store.store import Store
from continual_petl.streams.schema.backbone_spec import BackboneSpec
from continual_petl.streams.schema.data_spec import DataSpec, Rows, local_path, needs_no_network
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.sources.local_files import matching
from continual_petl.streams.stream_file.key_locations import KeyLocations
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
    return StreamFileError(error.places.with_more(_without_model(error.rest.spec, new).found))


def refuse_missing_files(spec: StreamSpec, new: Sequence[TaskSpec]) -> None:
    """If any task's files are missing, report what can be found without the model, which takes seconds to load.

    Args:
        spec: the stream.
        new: its tasks that have not been learned yet.

    Raises:
        InputError: with all problems; their keys start at the top of the stream.
    """
    if spec.backbone.remote_code:
        return  # whether its code may be executed is asked first
    if any(_is_missing(spec.resolved_data(task)) for task in new):
        _without_model(spec, [(key_of(spec, task), task) for task in new]).raise_all()


def _is_missing(data: str | DataSpec | Rows) -> bool:
    """Return whether any local file that a task's ``data`` names is missing."""
    if (
        not needs_no_network(data)
        or isinstance(data, Mapping)
        or (isinstance(data, DataSpec) and data.path == "embedded")
    ):
        return False
    if isinstance(data, str):
        paths = [data]
    elif data.local is not None or data.data_files is None:
        paths = [data.local or data.data_dir or data.path]
    else:
        given = data.data_files.values() if isinstance(data.data_files, Mapping) else [data.data_files]
        paths = [path for each in given for path in ([each] if isinstance(each, str) else each)]
    return not all(matching(local_path(path)) for path in paths)


def _without_model(spec: StreamSpec, tasks: Iterable[tuple[Key, TaskSpec]]) -> Problems:
    problems = Problems()
    _check_named(spec.backbone, problems)
    _check_without_network(spec, tasks, problems)
    return problems


def mistakes_of_task(places: KeyLocations, task: TaskSpec, spec: StreamSpec) -> StreamFileError:
    """Return the mistakes in one task's file and in its data.

    Args:
        places: the lines of the keys in the file, with the mistakes found in it.
        task: the task, without the keys that have mistakes.
        spec: the stream of the run that will learn it.
    """
    problems = Problems()
    _check_without_network(spec, [((), task)], problems)
    return StreamFileError(places.with_more(problems.found))


def _check_without_network(spec: StreamSpec, tasks: Iterable[tuple[Key, TaskSpec]], problems: Problems) -> None:
    without_network = [each for each in tasks if needs_no_network(spec.resolved_data(each[1]))]
    for key, task in without_network[:CHECKED_TASKS]:
        with problems.collected(key):
            from continual_petl.streams.preparation.prepare import check_data  # imports numpy

            check_data(spec, task)


def _check_named(backbone: BackboneSpec, problems: Problems) -> None:
    """Check a backbone's name and maximum length without loading its weights."""
    with problems.collected(("backbone",)), about("name"):
        try:
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


class Problems:
    """The problems found so far."""

    def __init__(self) -> None:
        self.found: list[tuple[Key, str]] = []

    @contextmanager
    def collected(self, above: Key = ()) -> Iterator[None]:
        """Record an `InputError` raised inside the block, and continue after it.

        Args:
            above: the key under which the errors' keys are nested.
        """
        try:
            yield
        except StreamFileError as error:
            self.found += [((*above, *key), text) for key, text in zip(error.keys, error.problems, strict=True)]
        except InputError as error:
            self.found.append(((*above, *error.key), str(error)))

    def raise_all(self) -> None:
        """Raise `InputError` if there are any problems; its keys start at the top of the stream."""
        try:
            raise_problems([text for _, text in self.found], [key for key, _ in self.found])
        except InputError as error:
            error.from_top = True
            raise


def key_of(spec: StreamSpec, task: TaskSpec) -> Key:
    """Return a task's key in its stream."""
    return ("tasks", [each.name for each in spec.tasks].index(task.name))


def with_lines(error: InputError, places: KeyLocations | None, top: Key = ()) -> InputError:
    """Return an error whose paragraphs start with the file and line they concern, if known.

    Args:
        error: an error from `Problems.raise_all`; any other is returned unchanged.
        places: where the keys of the stream, or of one of its tasks, are in their file; None if there is no file.
        top: the task's key in its stream, if the file describes one task; empty if it describes a stream.
    """
    if places is None or not error.from_top:
        return error
    if isinstance(error, StreamFileError):
        found = [_in_file(key, text, places, top) for key, text in zip(error.keys, error.problems, strict=True)]
        return StreamFileError(places.with_more(found))
    key, text = _in_file(error.key, str(error), places, top)
    return InputError(*places.with_more([(key, text)])) if error.key else error


def _in_file(key: Key, text: str, places: KeyLocations, top: Key) -> tuple[Key, str]:
    """Return the key relative to the file (empty if it is not in this file) and the text."""
    if key[: len(top)] != top:
        return (), text
    return key[len(top) :], f"{places.file}: {text}" if top and key == top else text
