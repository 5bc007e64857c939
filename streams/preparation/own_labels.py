"""Select the rows of a task that uses only some of the labels of its data (`all_labels`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from continual_petl.errors import InputError, about
from continual_petl.streams.preparation.labels import label_index, label_names, unknown_rule
from continual_petl.streams.preparation.spelling_notices import nearest, unknown_faults
from continual_petl.streams.protocols.splitting import left_out_notice
from continual_petl.streams.schema.stream_spec import SplitName, StreamSpec, TaskSpec
from continual_petl.streams.sources.checks import raise_faults
from continual_petl.streams.sources.label_file import read_label_names
from continual_petl.streams.sources.split_rows import SplitRows

_KEY = "`all_labels` (with split: `labels`)"
Splits = Mapping[SplitName, SplitRows]


def own_rows(
    spec: StreamSpec, task: TaskSpec, splits: Splits, own: Collection[str] | None = None
) -> tuple[dict[SplitName, SplitRows], str | None]:
    """Return the rows with one of the task's labels, and a notice about the rows left out.

    Integers may be positions in ``all_labels``, just as they may be positions in the labels of other tasks.

    Args:
        spec: the stream.
        task: the task; without ``all_labels`` all rows are returned.
        splits: all rows, as read.
        own: the labels of the task's bank; None means those in the stream.

    Raises:
        InputError: if a row has a label that is not in ``all_labels``, or a split has no rows of the task.
    """
    if task.all_labels is None:
        return dict(splits), None
    own = _named(task, "labels", spec.resolved_labels(task)) if own is None else own
    kept: dict[SplitName, SplitRows] = {}
    counts: dict[str, tuple[int, int]] = {}
    for name, rows in splits.items():
        kept[name] = _own_rows(spec, task, rows, set(own))
        counts[name] = len(rows) - len(kept[name]), len(rows)
    return kept, left_out_notice(task.name, counts)


def _own_rows(spec: StreamSpec, task: TaskSpec, rows: SplitRows, own: set[str]) -> SplitRows:
    labels = _all_labels(spec, task, rows, own)
    column, where = str(task.columns.read_by(task.kind)["label"]), rows.where
    positions = rows.class_names is None
    index = label_index(labels, positions=positions)
    names = label_names(where, column, rows.answers)
    unknown = unknown_faults(enumerate(names), index, "label")
    if unknown:
        with about("all_labels"):
            raise_faults(where, column, unknown, unknown_rule(labels, positions=positions, key=_KEY))
    answers = [labels[index[name]] for name in names]
    chosen = [row for row, answer in enumerate(answers) if answer in own]
    if not chosen:
        raise InputError(
            f"{where}: none of {len(rows)} rows has a label of this task ({', '.join(map(repr, sorted(own)[:5]))}"
            f"{', ...' if len(own) > 5 else ''}): add rows with these labels, or choose other labels",
            key=("labels",),
        )
    return replace(
        rows,
        where=where.take(chosen),
        inputs=[rows.inputs[row] for row in chosen],
        pairs=None if rows.pairs is None else [rows.pairs[row] for row in chosen],
        answers=[answers[row] for row in chosen],
        labels_file=None,  # from here on, labels are names
    )


def _all_labels(spec: StreamSpec, task: TaskSpec, rows: SplitRows, own: set[str]) -> tuple[str, ...]:
    """Return all labels of the data, as listed next to a local copy or in the stream."""
    written = _named(task, "all_labels", spec.resolved_all_labels(task))
    if rows.labels_file is None:
        labels, source = written, "all_labels"
    else:
        labels, source = _named(task, "all_labels", rows.labels_file), rows.labels_file
    if unknown := sorted(own.difference(labels)):
        raise InputError(
            f"task {task.name!r}: its label {unknown[0]!r} is not in {source}{nearest(unknown[0], labels)}, which lists all "
            "labels of the data: correct one of the two",
            key=("labels",),
        )
    return labels


def _named(task: TaskSpec, key: str, labels: tuple[str, ...] | str | None) -> tuple[str, ...]:
    assert labels is not None  # validated
    if not isinstance(labels, str):
        return labels
    try:
        return read_label_names(labels)
    except InputError as error:
        raise InputError(f"task {task.name!r}, {error}", key=(key,)) from error
