"""Resolves class weights from the stream's setting to one number per label. They affect the loss, never a score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from continual_petl.errors import InputError, did_you_mean, known_names
from continual_petl.kind_registry import find_kind

Asked = Literal["balanced"] | Mapping[str, float] | None


def resolve_class_weights(
    task: str, kind: str, asked: Asked, labels: tuple[str, ...] | None, train: NDArray[np.generic] | None
) -> tuple[float, ...] | None:
    """Return one weight per label, or None if all labels have the same weight.

    ``balanced`` is scikit-learn's formula N / (C count), with counts from the training rows or words. For multilabel, each
    label is a two-class problem, and its positives are multiplied by the ratio of the two balanced weights: the number of
    negatives divided by the number of positives. A mapping may leave labels out; their weight is 1.

    Args:
        task: name, for messages.
        kind: name of the kind.
        asked: the setting in the stream.
        labels: names in the order of the head's outputs.
        train: training labels: indices ``(N,)``, flat tag indices with -100 for positions without a tag, or zeros and
            ones ``(N, C)``.

    Raises:
        InputError: if a name is not a label of the task, or a balanced weight is undefined.
    """
    if asked is None or labels is None:
        return None
    if isinstance(asked, Mapping):
        known = set(labels)
        unknown = [name for name in asked if name not in known]
        if unknown:
            raise InputError(
                f"task {task!r}: training.class_weights names {known_names([*map(repr, unknown)])}"
                f"{did_you_mean(unknown[0], labels)}; the labels of its "
                f"data are {known_names([*map(repr, labels)])}. Write weights for these labels."
            )
        return tuple(float(asked.get(name, 1.0)) for name in labels)
    assert train is not None
    return find_kind(kind).balanced_weights(task, labels, train)


def check_counts(task: str, labels: tuple[str, ...], counts: NDArray[np.int64], what: str) -> None:
    """Refuse balanced class weights if a count is zero; ``what`` says what that means for its label."""
    wrong = [label for label, count in zip(labels, counts.tolist(), strict=True) if count == 0]
    if wrong:
        raise InputError(
            f"task {task!r}: training.class_weights is 'balanced', which is not defined for label {wrong[0]!r}: in "
            f"the training split it {what}. Add rows, write weights by name ({{{wrong[0]}: 1.0}}), or leave class_weights "
            "out."
        )
