"""All mistakes of a stream file at once: those of the file itself, and those in what it names.

Nothing here needs the backbone's weights or the network, because a misspelt key should be reported quickly. So torch is
imported only where a length has to be compared with a model.
"""

from __future__ import annotations

from pathlib import Path

from continual_petl.backbones.available import MissingBackboneError, check_available
from continual_petl.course.problems import Problems, key_of
from continual_petl.errors import InputError, StoreError, StreamFileError, about
from continual_petl.store.store import Store
from continual_petl.streams.preparation.prepare import check_data
from continual_petl.streams.schema.backbone_spec import BackboneSpec
from continual_petl.streams.schema.data_spec import is_near
from continual_petl.streams.stream_file.yaml_file import PartlyUsableError

CHECKED_TASKS = 20
"""Of a longer stream the data of the next tasks is read ahead, of so many."""


def all_mistakes(error: PartlyUsableError, folder: Path) -> StreamFileError:
    """Return the mistakes of a stream file together with those in what it names: data, columns, labels, lengths, backbone.

    Args:
        error: what reading the file raised.
        folder: the run folder; what was learned there already is not checked again.
    """
    if error.rest is None:
        return error
    try:
        learned = set(Store(folder).tasks)
    except StoreError:
        return error  # a damaged run is reported once the stream file is correct
    problems, spec = Problems(), error.rest
    _check_named(spec.backbone, problems)
    new = [task for task in spec.tasks if task.name not in learned and is_near(spec.resolved_data(task))]
    for task in new[:CHECKED_TASKS]:
        with problems.collected(key_of(spec, task)):
            check_data(spec, task)
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
            from continual_petl.backbones.backbone import check_max_length  # with torch

            check_max_length(backbone.name, backbone.revision, backbone.max_length)


def check_meant(backbone: BackboneSpec, meant: str | None, problems: Problems) -> None:
    """Check the length against the backbone that was probably meant, so that both mistakes are reported at once."""
    if meant is None or backbone.max_length is None:
        return
    from continual_petl.backbones.backbone import check_max_length

    try:
        check_max_length(meant, None, backbone.max_length)
    except InputError as error:
        if error.key:  # of the length; that another backbone cannot be read is no mistake of the stream
            problems.found.append((("backbone", *error.key), str(error)))
