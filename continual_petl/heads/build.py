"""Builds the head for a kind of task."""

from __future__ import annotations

from continual_petl.heads.head import Head
from continual_petl.heads.targets import Targets
from continual_petl.kind_registry import find_kind


def build_head(
    kind: str,
    width: int,
    num_outputs: int,
    *,
    dropout: float = 0.0,
    label_smoothing: float = 0.0,
    class_weights: tuple[float, ...] | None = None,
    targets: Targets | None = None,
) -> Head:
    """Return the head for a kind of task, with uninitialised parameters.

    Args:
        kind: name of the kind.
        width: size of the backbone's states.
        num_outputs: one per label; 1 for regression; not used by generative tasks.
        dropout: probability of dropout on the features, in training only.
        label_smoothing: share of a target that is spread over all labels, or over the vocabulary; not used by regression
            and multilabel tasks.
        class_weights: one per label; regression and generative tasks have none.
        targets: mean and deviation of the training targets, for regression.
    """
    head = find_kind(kind).head(
        width,
        num_outputs,
        dropout=dropout,
        label_smoothing=label_smoothing,
        class_weights=class_weights,
        targets=targets,
    )
    assert isinstance(head, Head)
    return head
