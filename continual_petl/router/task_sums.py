"""One pass of a task's rows through the frozen backbone, and one through its bank, for its routing statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from continual_petl.backbones.backbone import Backbone
from continual_petl.kind_registry import kind_of
from continual_petl.learner.respond import respond
from continual_petl.learner.task_bank import TaskBank
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.router.row_states import MAX_WIDTH, projection, row_states
from continual_petl.router.sums import Array, RowsRead, VectorsRead
from continual_petl.seeding import derive_seed
from continual_petl.streams.batches.batching import evaluation_batches
from continual_petl.streams.batches.collate import collate
from continual_petl.streams.encoding.rows import TokenisedRows

NUM_LAYERS: dict[Literal["compact", "full", "small"], int] = {"compact": 3, "full": 3, "small": 1}
"""Number of layers of the backbone that are read for each value of ``routing`` in the stream."""
MAX_ROWS = 5000
"""Maximum number of training rows that are read in the frozen backbone."""
MAX_HELD_OUT = 1000
"""Maximum number of validation rows that are read."""
MAX_VECTORS = 2000
"""Maximum number of training rows that are read with the bank; its vectors are much smaller than the states."""


def rows_read(
    backbone: Backbone,
    train: TokenisedRows,
    validation: TokenisedRows,
    plan: TaskPlan,
    layers: tuple[int, ...],
    pad_token_id: int,
) -> RowsRead:
    """Return what the router reads of a task's rows in the frozen backbone.

    Args:
        backbone: the frozen backbone, with no bank attached.
        train: encoded training rows; at most `MAX_ROWS` of them are read, drawn with the task's seed.
        validation: encoded validation rows; only the moments of their distances are kept.
        plan: the task; if each row has one label, and every label has enough rows, the mean of each label is stored.
        layers: 1-based indices of the layers that are read.
        pad_token_id: the token that pads short rows.
    """
    train, validation = _drawn(train, validation, plan)
    train_NF, validation_NF = (row_states(backbone, rows, layers, pad_token_id) for rows in (train, validation))
    labels_N = None
    if kind_of(plan).has_one_label and train.labels is not None:
        labels_N = train.labels.astype(np.int64)
    return RowsRead(layers=layers, train_NF=train_NF, validation_NF=validation_NF, labels_N=labels_N)


def vectors_read(
    own: TaskBank, train: TokenisedRows, validation: TokenisedRows, pad_token_id: int
) -> VectorsRead | None:
    """Return the vectors that a task's bank gives to its head.

    Args:
        own: the task's final bank, in eval mode.
        train: encoded training rows; `MAX_VECTORS` of those that `rows_read` reads are read.
        validation: encoded validation rows.
        pad_token_id: the token that pads short rows.

    Returns:
        None if the head does not read one vector per row, or the bank is shared, so that later tasks change it.
    """
    if not own.kind.has_one_vector or own.plan.bank.scope == "shared":
        return None
    train, validation = _drawn(train, validation, own.plan)
    chosen = np.asarray(drawn_rows(len(train), own.plan.seed, MAX_VECTORS), dtype=np.intp)
    train_ND, validation_ND = (
        _vectors(own, rows, pad_token_id) for rows in (_taken(train, chosen.tolist()), validation)
    )
    return VectorsRead(train=chosen, train_ND=train_ND, validation_ND=validation_ND)


@torch.inference_mode()
def _vectors(own: TaskBank, rows: TokenisedRows, pad_token_id: int) -> Array:
    found: list[Array | None] = [None] * len(rows)
    size, max_tokens = own.plan.training.evaluation
    for numbers in evaluation_batches(rows.lengths, size, max_tokens):
        batch = collate(rows, numbers, pad_token_id, train=False)
        vectors: list[torch.Tensor | None] = []
        device = own.backbone.model.device
        respond([own], {name: tensor.to(device) for name, tensor in batch.items()}, vectors=vectors)
        for number, vector_D in zip(numbers, narrowed(vectors[0]), strict=True):
            found[number] = vector_D
    return np.stack([vector_D for vector_D in found if vector_D is not None])


def narrowed(vectors_BD: torch.Tensor | None) -> Array:
    """Return vectors of a bank in float64, at most `MAX_WIDTH` values each: wider ones are projected as states are."""
    assert vectors_BD is not None
    wide_BD: Array = vectors_BD.detach().double().cpu().numpy()
    return wide_BD if wide_BD.shape[1] <= MAX_WIDTH else wide_BD @ projection(wide_BD.shape[1])


def _drawn(train: TokenisedRows, validation: TokenisedRows, plan: TaskPlan) -> tuple[TokenisedRows, TokenisedRows]:
    return (
        _taken(train, drawn_rows(len(train), plan.seed)),
        _taken(validation, drawn_rows(len(validation), plan.seed, MAX_HELD_OUT)),
    )


def _taken(rows: TokenisedRows, numbers: Sequence[int]) -> TokenisedRows:
    return rows if len(numbers) == len(rows) else rows.take(numbers)


def drawn_rows(num_rows: int, seed: int, most: int | None = None) -> Sequence[int]:
    """Return the indices of the rows of a split that are read, ascending: at most ``most``, by default `MAX_ROWS`."""
    most = MAX_ROWS if most is None else most
    if num_rows <= most:
        return range(num_rows)
    drawn = np.random.default_rng(derive_seed(seed, "router")).choice(num_rows, most, replace=False)
    return [int(row) for row in np.sort(drawn)]
