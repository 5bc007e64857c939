"""Collect all mistakes of a stream file at once: in the file itself, and in what it refers to.

Nothing here needs the backbone's weights or the network, because a misspelt key should be reported quickly. So torch is
imported only where a length has to be compared with a model, and `datasets` only where nothing else reads the rows.
"""

from __future__ import annotations

from pathlib import Path

from continual_petl.backbones.available import MissingBackboneError, check_available
from continual_petl.engine.checks.problems import Problems
from continual_petl.errors import InputError, StoreError, StreamFileError, about
from continual_petl.store.store import Store
from continual_petl.streams.preparation.prepare import check_data
from continual_petl.streams.schema.backbone_spec import BackboneSpec
from continual_petl.streams.schema.data_spec import is_near
from continual_petl.streams.stream_file.yaml_file import PartlyUsableError

CHECKED_TASKS = 20
"""Number of tasks whose data is read in advance for a longer stream."""


def all_mistakes(error: PartlyUsableError, folder: Path) -> StreamFileError:
    """Return the mistakes of a stream file and of what it refers to: data, columns, labels, lengths, backbone.

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
    problems, spec = Problems(), error.rest.spec
    _check_named(spec.backbone, problems)
    # Numbers as in the file: tasks with mistakes are not among those that are left.
    left = zip(error.rest.numbers, spec.tasks, strict=False)
    new = [each for each in left if each[1].name not in learned and is_near(spec.resolved_data(each[1]))]
    for number, task in new[:CHECKED_TASKS]:
        with problems.collected(("tasks", number)):
            check_data(spec, task, light=True)
    return StreamFileError(error.places.with_more(problems.found))


def _check_named(backbone: BackboneSpec, problems: Problems) -> None:
    """Check name and length of a backbone without loading its weights."""
    with problems.collected(("backbone",)), about("name"):
        try:
            check_available(backbone.name, backbone.revision)
        except MissingBackboneError as error:
            check_meant(backbone, error.near, problems)
            raise
        if backbone.max_length is not None and not backbone.remote_code:
            from continual_petl.backbones.backbone import check_max_length  # imports torch

            check_max_length(backbone.name, backbone.revision, backbone.max_length)


def check_meant(backbone: BackboneSpec, meant: str | None, problems: Problems) -> None:
    """Check the length against the backbone that was probably meant, so that both mistakes are reported at once."""
    if meant is None or backbone.max_length is None:
        return
    from continual_petl.backbones.backbone import check_max_length

    try:
        check_max_length(meant, None, backbone.max_length)
    except InputError as error:
        if error.key:  # about the length; failing to read another backbone is not a mistake in the stream
            problems.found.append((("backbone", *error.key), str(error)))
