"""Select the rows of a task that uses only some of the labels of its data (`all_labels`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from continual_petl.errors import InputError, about
from continual_petl.streams.preparation.labels import encode_labels, label_names
from continual_petl.streams.preparation.spelling_notices import nearest
from continual_petl.streams.protocols.splitting import left_out_notice
from continual_petl.streams.schema.stream_spec import SplitName, StreamSpec, TaskSpec
from continual_petl.streams.sources.checks import Cells
from continual_petl.streams.sources.label_file import names_of_labels
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
    own = names_of_labels(task.name, "labels", spec.resolved_labels(task) or ()) if own is None else own
    kept: dict[SplitName, SplitRows] = {}
    counts: dict[str, tuple[int, int]] = {}
    for name, rows in splits.items():
        kept[name] = _own_rows(spec, task, rows, set(own))
        counts[name] = len(rows) - len(kept[name]), len(rows)
    return kept, left_out_notice(task.name, counts)


def _own_rows(spec: StreamSpec, task: TaskSpec, rows: SplitRows, own: set[str]) -> SplitRows:
    labels = _all_labels(spec, task, rows, own)
    names = label_names(rows.answers)
    with about("all_labels"):
        numbers = encode_labels(names, labels, positions=rows.class_names is None, key=_KEY)
    answers = [labels[number] for number in numbers.tolist()]
    chosen = [row for row, answer in enumerate(answers) if answer in own]
    if not chosen:
        raise InputError(
            f"{rows.where}: none of {len(rows)} rows has a label of this task ({', '.join(map(repr, sorted(own)[:5]))}"
            f"{', ...' if len(own) > 5 else ''}): add rows with these labels, or choose other labels",
            key=("labels",),
        )
    kept = rows.take(chosen)
    key, column = [*kept.columns.items()][-1]
    named = Cells(kept.where, column.name, [answers[row] for row in chosen])
    return replace(kept, columns={**kept.columns, key: named}, labels_file=None)  # from here on, labels are names


def _all_labels(spec: StreamSpec, task: TaskSpec, rows: SplitRows, own: set[str]) -> tuple[str, ...]:
    """Return all labels of the data, as listed next to a local copy or in the stream."""
    source = rows.labels_file or "all_labels"
    labels = names_of_labels(task.name, "all_labels", rows.labels_file or spec.resolved_all_labels(task) or ())
    if unknown := sorted(own.difference(labels)):
        raise InputError(
            f"task {task.name!r}: its label {unknown[0]!r} is not in {source}{nearest(unknown[0], labels)}, which lists all "
            "labels of the data: correct one of the two",
            key=("labels",),
        )
    return labels
