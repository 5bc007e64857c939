"""How the tags of a task mark entities, recognised from its labels and training rows; see `heads.tag_scheme`."""

from __future__ import annotations

from continual_petl.errors import InputError
from continual_petl.heads.metric_names import is_of_entities
from continual_petl.heads.tag_scheme import AmbiguousTags, TagReading, UnfitTags, decided_by_rows, read_tags
from continual_petl.streams.preparation.checked_rows import Checked
from continual_petl.streams.schema.stream_spec import TaskSpec


def tags_of(task: TaskSpec, labels: tuple[str, ...], train: Checked) -> tuple[TagReading, str | None, str]:
    """Return how the tags are read, a notice if rows break the rules of their scheme, and a remark for the user.

    Args:
        task: a token-classification task.
        labels: all its tags.
        train: its training rows.

    Raises:
        InputError: if no scheme fits and the task's metric counts entities, or what the stream file says does not fit.
    """
    asked = task.tags
    name, metric = task.name, task.resolved_metric
    written = asked is not None and asked.scheme is not None
    try:
        try:
            reading = (
                read_tags(labels) if asked is None else read_tags(labels, asked.scheme, asked.outside, asked.position)
            )
        except AmbiguousTags as error:
            reading = _decided(error, labels, train, written)
    except UnfitTags as error:
        if asked is not None:
            raise InputError(
                f"task {name!r}, tags: {error}. Correct `tags`, or leave it out.", key=("tags",)
            ) from error
        if is_of_entities(metric):
            raise InputError(
                f"task {name!r}: metric {metric}{' (the default)' if task.metric is None else ''} counts entities, but "
                f"{error}. Write metric: accuracy for the share of words that are tagged correctly, or write how entities "
                "are marked, such as tags: {scheme: IOB2, outside: O}.",
                key=("metric",),
            ) from error
        unread = f"task {name!r}: there are no entity scores, because {error}."
        return TagReading(scheme="none"), None, unread
    reading, breaking = decided_by_rows(reading, labels, train.answers, written)
    notice = None
    if breaking:
        notice = (
            f"task {name!r}: the tags of {breaking} of {len(train)} training rows break the rules of {reading.scheme}; "
            "entities are counted as conlleval counts them: an entity may begin or end with any letter."
        )
    how = reading.in_words if reading.scheme == "none" else f"read as {reading.in_words}"
    return reading, notice, f"task {name!r}: tags are {how}."


def _decided(found: AmbiguousTags, labels: tuple[str, ...], train: Checked, written: bool) -> TagReading:
    """Return the only reading whose rules all training rows keep to; raises ``found`` if there is not exactly one."""
    kept = [reading for reading in found.readings if decided_by_rows(reading, labels, train.answers, written)[1] == 0]
    if len(kept) != 1:
        raise found
    return kept[0]
