"""``history.json``: a task's learning curves and a summary of its bank's predictions, for display.

It is stored next to the bank and committed with it, and the certificate covers its bytes; nothing is ever computed from it.
Its size grows with epochs and labels, not with rows or steps.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from continual_petl._strict_model import StrictModel
from continual_petl.errors import StoreError
from continual_petl.store.certificate.certificate import HISTORY, Certificate
from continual_petl.store.certificate.values import Index
from continual_petl.store.files.atomic import json_bytes, write_file
from continual_petl.store.files.reading import MAX_JSON_BYTES, as_written, parse_json, read_file
from continual_petl.store.files.sealed import check_version, invalid
from continual_petl.streams.schema.field_types import Name

CURVE = "curve.json"
"""File with the learning curves of a fit in progress, in the task's progress folder."""


class LossPoint(StrictModel):
    """Mean training loss over a range of batches."""

    step: Index
    """Optimizer steps done at the end of the range."""
    loss: float | None
    """None if it was not finite."""


class ScorePoint(StrictModel):
    """Scores on the validation split at the end of an epoch."""

    step: Index
    epoch: Index
    """1-based."""
    scores: dict[str, float]
    """Scores by name; undefined ones (such as the correlation of constant predictions) are left out."""


class Confusion(StrictModel):
    """Confusion matrix: how often each label was predicted for rows (or words) with each true label."""

    type: Literal["confusion"] = "confusion"
    cells: tuple[tuple[Index, Index, Index], ...]
    """(true label, predicted label, count), labels as indices; only the most frequent cells."""
    others: Index
    """Number of rows or words in cells that were left out."""


class Points(StrictModel):
    """Regression targets and the predicted values."""

    type: Literal["points"] = "points"
    pairs: tuple[tuple[float, float | None], ...]
    """(true, predicted) for rows evenly spaced over the split; None if a prediction is not finite."""


class PerLabel(StrictModel):
    """For each label of a multilabel task, how often it was predicted correctly, wrongly, or missed."""

    type: Literal["per label"] = "per label"
    counts: tuple[tuple[Index, Index, Index], ...]
    """(true positives, false positives, false negatives), in the order of the labels."""


class Sample(StrictModel):
    """One generated text."""

    row: Index
    """Index of the row in its split."""
    text: str
    reference: str | None = None
    """The reference text; kept only if the stream keeps real rows (``probe: validation``)."""


class Samples(StrictModel):
    """Some generated texts, for rows evenly spaced over the split."""

    type: Literal["samples"] = "samples"
    texts: tuple[Sample, ...]


Answered = Annotated[Confusion | Points | PerLabel | Samples, Field(discriminator="type")]


class Curve(StrictModel):
    """Learning curves of a fit."""

    losses: tuple[LossPoint, ...]
    """Mean losses over ranges of equal length."""
    scores: tuple[ScorePoint, ...]
    """One point for each validation."""


class History(StrictModel):
    """A task's learning curves and a summary of its bank's predictions."""

    format_version: Literal[1] = 1
    task: Name
    curve: Curve
    kept: Index | None
    """Number of optimizer steps that the kept bank was trained for: up to the best validation score, or to the end; None if
    unknown."""
    answered: dict[str, Answered]
    """Summaries of predictions by split."""


def read_curve(folder: Path) -> Curve | None:
    """Return the curve in a progress folder; None if none was written yet.

    Raises:
        StoreError: if it is damaged.
    """
    path = folder / CURVE
    try:
        return Curve.model_validate(as_written(read_file(path, MAX_JSON_BYTES), path))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise invalid(path, error) from error


def write_history(path: Path, history: History) -> str:
    """Write a history, and return the SHA-256 of the file."""
    content = json_bytes(history.model_dump(mode="json"))
    write_file(path, content)
    return hashlib.sha256(content).hexdigest()


def read_history(path: Path, certificate: Certificate) -> History:
    """Return a task's history.

    Args:
        path: the file.
        certificate: the certificate of the task.

    Raises:
        StoreError: if it is not the one that was certified.
    """
    name = f"task {certificate.task!r}"
    try:
        content = read_file(path, MAX_JSON_BYTES)
    except FileNotFoundError:
        raise StoreError(
            f"{name}: {path} is missing. No prediction depends on it, but the certificate covers it: restore it from a copy."
        ) from None
    if hashlib.sha256(content).hexdigest() != certificate.files[HISTORY]:
        raise StoreError(
            f"{name}: {path}: its bytes are not those that were certified; the file was changed after the task was learned. "
            "No prediction depends on it, but its content can no longer be trusted: restore it from a copy."
        )
    raw = parse_json(content, str(path))
    check_version(raw, path, 1)
    try:
        return History.model_validate(raw)
    except ValidationError as error:
        raise invalid(path, error) from error
