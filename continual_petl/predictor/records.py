"""A row and its prediction as one record of plain values, as ``predict --json`` prints it and the endpoint returns it."""

from __future__ import annotations

from typing import Any

from continual_petl.heads.words import Answer
from continual_petl.kind import kind_of
from continual_petl.predictor.one_or_many import Row
from continual_petl.predictor.routed_answer import RoutedAnswer
from continual_petl.store.certificate.manifest import Manifest

Record = dict[str, Any]
ANSWER, SHARES, NEAR_TIE = "answer", "probabilities", "near_tie"


def standard_columns(manifest: Manifest) -> tuple[str, ...]:
    """Return the standard column names of a task's kind: the keys of ``columns`` in a stream file."""
    names = kind_of(manifest).row_columns(pair=manifest.pair, options=manifest.options_from == "row")
    return names if manifest.chat is None else ("messages", *names[1:])


def record_of(row: Row, answer: Answer | None, manifest: Manifest, given: Record | None = None) -> Record:
    """Return a record of a row and its prediction.

    Args:
        row: the row.
        answer: the prediction; None if there is none.
        manifest: manifest of the task.
        given: the row with all its columns; None means the row with the standard column names.
    """
    if given is None:
        names = standard_columns(manifest)
        given = dict(zip(names, row if len(names) > 1 else (row,), strict=True))
    record: Record = {**given, ANSWER: None if answer is None else answer.value}
    if answer is not None and answer.probabilities is not None:
        record[SHARES] = dict(answer.probabilities)
    record |= {name: None if answer is None else answer.details[name] for name in kind_of(manifest).details}
    if has_near_ties(manifest):
        record[NEAR_TIE] = None if answer is None else answer.near_tie
    return record


def has_near_ties(manifest: Manifest) -> bool:
    """Return whether records of a task say if a prediction is near a tie: in bf16, where that happens to some rows."""
    if manifest.environment.precision != "bf16" or kind_of(manifest).has_numbers:
        return False
    return manifest.generation is None or manifest.generation.num_beams == 1


def route_of(answer: RoutedAnswer) -> Record:
    """Return the part of a record that describes the task found for a row."""
    return {
        "task": answer.task,
        "task_probability": answer.task_probability,
        "task_near_tie": answer.near_tie,
        "runners_up": dict(answer.runners_up),
    }
