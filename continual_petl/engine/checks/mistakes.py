"""Collect all mistakes in a stream file at once: in the file itself, and in the data and the backbone it refers to.

Nothing here needs the backbone's weights or the network, because a misspelt key should be reported quickly. For the same
reason, torch is imported only where a model's configuration omits its maximum length, and `datasets` only for data sets on
the Hub.

Some mistakes only show up once the model is loaded: a bank larger than a layer, a kind that the model cannot learn. Loading
takes seconds, which is too long for a message about a missing file. So nothing is loaded if config.json already shows that
the model can learn the tasks; when in doubt, the model is loaded. If there is no backbone with the given name, there is
nothing to load.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from continual_petl.backbones import families as families  # registers the anatomies
from continual_petl.backbones.anatomy import Anatomy, find_anatomy
from continual_petl.backbones.available import MissingBackboneError, check_available
from continual_petl.backbones.backbone_files import CONFIG, source_of
from continual_petl.backbones.max_length import check_max_length
from continual_petl.errors import InputError, Key, StoreError, StreamFileError, about, raise_problems
from continual_petl.kind_registry import kind_of
from continual_petl.store.store import Store
from continual_petl.streams.protocols.rules import evaluated_by_label
from continual_petl.streams.schema.backbone_spec import BackboneSpec
from continual_petl.streams.schema.data_spec import DataSpec, Rows, local_path, needs_no_network
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.sources.local_files import matching
from continual_petl.streams.sources.read_splits import read_splits
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
    return StreamFileError(error.places.with_more(named_mistakes(error.rest.spec, new).found))


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
    _check_without_network(spec, tasks, problems)
    return problems


def _check_without_network(spec: StreamSpec, tasks: Iterable[tuple[Key, TaskSpec]], problems: Problems) -> None:
    without_network = [each for each in tasks if needs_no_network(spec.resolved_data(each[1]))]
    for key, task in without_network[:CHECKED_TASKS]:
        with problems.collected(key):
            data = spec.resolved_data(task)
            if is_missing(data):
                with about("data"):
                    read_splits(task.name, data, task.columns, kind=task.kind, limits=task.limits)
            from continual_petl.streams.preparation.prepare import check_data  # imports numpy

            check_data(spec, task)


def is_missing(data: str | DataSpec | Rows) -> bool:
    """Return whether any file that a task's ``data`` refers to is missing."""
    return needs_no_network(data) and not all(matching(local_path(path)) for path in _named(data))


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


_FFN_WIDTHS = ("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "hidden_dim")
_NARROWER = ("num_key_value_heads", "head_dim", "d_kv", "embedding_size")
"""Keys of config.json that can make a projection narrower than the hidden size."""


def refuse_missing_files(spec: StreamSpec, new: Sequence[TaskSpec]) -> None:
    """If any task's files are missing, report all problems with a stream's data and backbone without loading the model.

    Args:
        spec: the stream.
        new: its tasks that have not been learned yet.

    Raises:
        InputError: with all problems; their keys start at the top of the stream.
    """
    if any(is_missing(spec.resolved_data(task)) for task in new) and _model_agrees(spec, new):
        named_mistakes(spec, [(key_of(spec, task), task) for task in new]).raise_all()


def refuse_missing_backbone(spec: StreamSpec, new: Sequence[TaskSpec], learned_on: str | None = None) -> None:
    """If the backbone does not exist, report all problems with a stream's data and backbone; see `refuse_missing_files`.

    Args:
        spec: the stream.
        new: its tasks that have not been learned yet.
        learned_on: the name of the run's backbone; None before its first task.
    """
    if evaluated_by_label(spec.protocol):
        return  # labels must be compared across tasks, which only `preflight` does
    try:
        check_available(spec.backbone.name, spec.backbone.revision)
    except MissingBackboneError as error:
        missing = error if learned_on in (None, spec.backbone.name) else error.in_run(learned_on)
        named_mistakes(spec, [(key_of(spec, task), task) for task in new], missing=missing).raise_all()


def _model_agrees(spec: StreamSpec, tasks: Sequence[TaskSpec]) -> bool:
    """Return whether config.json alone shows that the model can learn the tasks and that their banks fit."""
    asked = spec.backbone
    if asked.max_length is not None or asked.remote_code:
        return False
    try:
        config = json.loads(Path(os.path.expanduser(source_of(asked.name)), CONFIG).read_bytes())
        anatomy, width = find_anatomy(config["model_type"]), _width(config)
        return not anatomy.images and all(_fits(spec, task, anatomy, width) for task in tasks)
    except (InputError, OSError, ValueError, LookupError, TypeError):
        return False


def _width(config: Mapping[str, Any]) -> int:
    """Return the width of the narrowest projection; 0 if config.json does not give it."""
    hidden: int = config[find_anatomy(config["model_type"]).hidden_size_key]
    found = [hidden, *(config[key] for key in _FFN_WIDTHS if key in config)]
    return 0 if len(found) == 1 or any(key in config for key in _NARROWER) else min(found)


def _fits(spec: StreamSpec, task: TaskSpec, anatomy: Anatomy, width: int) -> bool:
    bank, pooling = spec.resolved_bank(task), spec.resolved_pooling(task)
    usual = (
        kind_of(task).output_head == "none"  # every model of texts can learn it
        and not kind_of(task).reads_images
        and (pooling in (None, "mean") or not kind_of(task).pools)
        and spec.merged_training(task).prefix_cache != "on"
        and (bank.layers, bank.scope, bank.start_from, bank.fuse) == ("all", "task", None, ())
        and (bank.modifications or bank.layernorms == "frozen")
    )
    return usual and all(
        modification.config.fits_by_size
        and not (modification.normalised_input and any(stack.norm_first for stack in anatomy.stacks))
        and (modification.bottleneck or 0) <= width
        for modification in bank.modifications
    )


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
