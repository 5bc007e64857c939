"""``history.json``: how a task was learned and what its bank answered, for people to look at.

It lies beside the bank, is committed with it, and its bytes are in the certificate; nothing is ever computed from it. It
grows with epochs and labels, not with rows or steps.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from continual_petl._frozen import FrozenModel
from continual_petl.errors import StoreError
from continual_petl.store.atomic import json_bytes, write_file
from continual_petl.store.files import MAX_JSON_BYTES, parse_json, read_file
from continual_petl.store.manifest import HISTORY, Index, Manifest
from continual_petl.store.sealed import check_version, invalid
from continual_petl.streams.schema.field_types import Name


class LossPoint(FrozenModel):
    """The mean training loss of a stretch of batches."""

    step: Index
    """Optimizer steps that were done at the end of the stretch."""
    loss: float | None
    """None where it was not a finite number."""


class ScorePoint(FrozenModel):
    """The scores on the validation split at the end of an epoch."""

    step: Index
    epoch: Index
    """From 1."""
    scores: dict[str, float]
    """By name; those that are not defined (a correlation of constant predictions) are left out."""


class Confusion(FrozenModel):
    """How often rows, or words, of one label were answered with another."""

    type: Literal["confusion"] = "confusion"
    cells: tuple[tuple[Index, Index, Index], ...]
    """(true label, answered label, how often): numbers of labels; the most frequent cells."""
    others: Index
    """Rows, or words, of cells that are not among them."""


class Points(FrozenModel):
    """Numbers that were to be answered, with those that were."""

    type: Literal["points"] = "points"
    pairs: tuple[tuple[float, float | None], ...]
    """(true, answered) of rows evenly spaced over the split; None where the answer is not finite."""


class PerLabel(FrozenModel):
    """For each label of a multilabel task, on how many rows it holds and was answered."""

    type: Literal["per label"] = "per label"
    counts: tuple[tuple[Index, Index, Index], ...]
    """(true positives, false positives, false negatives), in the order of the labels."""


class Sample(FrozenModel):
    """One text that was generated."""

    row: Index
    """Number of the row in its split."""
    text: str
    reference: str | None = None
    """The text that was to be generated; kept only where the stream keeps real rows (``probe: validation``)."""


class Samples(FrozenModel):
    """Some texts that were generated, of rows evenly spaced over the split."""

    type: Literal["samples"] = "samples"
    texts: tuple[Sample, ...]


Answered = Annotated[Confusion | Points | PerLabel | Samples, Field(discriminator="type")]


class Curve(FrozenModel):
    """How a fit went."""

    losses: tuple[LossPoint, ...]
    """Over stretches of equal length."""
    scores: tuple[ScorePoint, ...]
    """One for each validation."""


class History(FrozenModel):
    """How a task was learned, and what its bank answered."""

    format_version: Literal[1] = 1
    task: Name
    curve: Curve
    kept: Index | None
    """Optimizer steps of the bank that was kept: at the best validation, or at the end; None where that is not known."""
    answered: dict[str, Answered]
    """By split."""


def write_history(path: Path, history: History) -> str:
    """Write a history, and return the SHA-256 of the file."""
    content = json_bytes(history.model_dump(mode="json"))
    write_file(path, content)
    return hashlib.sha256(content).hexdigest()


def read_history(path: Path, manifest: Manifest) -> History | None:
    """Return the history of a task, None for one that was learned before there were any.

    Args:
        path: the file.
        manifest: of the task.

    Raises:
        StoreError: if it is not the one that was certified.
    """
    certified = manifest.files.get(HISTORY)
    if certified is None:
        return None
    what = f"task {manifest.task!r}"
    try:
        content = read_file(path, MAX_JSON_BYTES)
    except FileNotFoundError:
        raise StoreError(
            f"{what}: {path} is missing. No answer depends on it, but it belongs to the certificate: restore it from a copy."
        ) from None
    if hashlib.sha256(content).hexdigest() != certified:
        raise StoreError(
            f"{what}: {path}: its bytes are not those that were certified; the file was changed after the task was learned. "
            "No answer depends on it, but what it says can no longer be trusted: restore it from a copy."
        )
    raw = parse_json(content, str(path))
    check_version(raw, path, (1,))
    try:
        return History.model_validate(raw)
    except ValidationError as error:
        raise invalid(path, error) from error
