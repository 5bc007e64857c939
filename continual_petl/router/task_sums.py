"""One pass of a task's rows through the frozen backbone, and the sums that are stored of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from continual_petl.backbones.backbone import Backbone
from continual_petl.router.row_states import layers_to_read, num_layers_of, row_states
from continual_petl.router.sums import TaskSums, sums_of
from continual_petl.seeding import derive_seed
from continual_petl.streams.encoding.rows import TokenisedRows

NUM_LAYERS: dict[Literal["full", "small"], int] = {"full": 3, "small": 1}
"""How many layers of the backbone are read, by the ``routing`` of the stream."""
MAX_ROWS = 5000
"""Rows of a split that are read."""


def task_sums(
    backbone: Backbone,
    train: TokenisedRows,
    validation: TokenisedRows,
    *,
    routing: Literal["full", "small"],
    pad_token_id: int,
    seed: int,
) -> TaskSums:
    """Return what a task stores for the router.

    Args:
        backbone: the frozen backbone, with no bank attached.
        train: encoded training rows; at most `MAX_ROWS` of them are read, drawn by ``seed``.
        validation: encoded validation rows; only quantiles of their distances are kept.
        routing: the setting of the stream.
        pad_token_id: the token that pads short rows.
        seed: the task's seed.
    """
    layers = layers_to_read(num_layers_of(backbone), NUM_LAYERS[routing])
    train_NF, held_out_NF = (
        row_states(backbone, rows, layers, pad_token_id, numbers=drawn_rows(len(rows), seed))
        for rows in (train, validation)
    )
    return sums_of(train_NF, layers, held_out_NF)


def drawn_rows(num_rows: int, seed: int) -> Sequence[int]:
    """Return the indices of the rows of a split that are read, in ascending order: at most `MAX_ROWS`."""
    if num_rows <= MAX_ROWS:
        return range(num_rows)
    drawn = np.random.default_rng(derive_seed(seed, "router")).choice(num_rows, MAX_ROWS, replace=False)
    return [int(row) for row in np.sort(drawn)]
