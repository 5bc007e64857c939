"""One pass of a task's rows through the frozen backbone, and the routing statistics computed from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from continual_petl.backbones.backbone import Backbone
from continual_petl.kind_registry import kind_of
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.router.row_states import layers_to_read, num_layers_of, row_states
from continual_petl.router.sums import TaskSums, sums_of
from continual_petl.seeding import derive_seed
from continual_petl.streams.encoding.rows import TokenisedRows

NUM_LAYERS: dict[Literal["full", "small"], int] = {"full": 3, "small": 1}
"""Number of layers of the backbone that are read for each value of ``routing`` in the stream."""
MAX_ROWS = 5000
"""Maximum number of training rows that are read."""
MAX_HELD_OUT = 1000
"""Maximum number of validation rows that are read."""


def task_sums(
    backbone: Backbone,
    train: TokenisedRows,
    validation: TokenisedRows,
    plan: TaskPlan,
    *,
    routing: Literal["full", "small"],
    pad_token_id: int,
) -> TaskSums:
    """Return the routing statistics that a task stores.

    Args:
        backbone: the frozen backbone, with no bank attached.
        train: encoded training rows; at most `MAX_ROWS` of them are read, drawn with the task's seed.
        validation: encoded validation rows; only quantiles of their distances are kept.
        plan: the task; if each row has one label, and every label has enough rows, the mean of each label is stored.
        routing: the stream's ``routing`` setting.
        pad_token_id: the token that pads short rows.
    """
    layers = layers_to_read(num_layers_of(backbone), NUM_LAYERS[routing])
    train = _drawn(train, drawn_rows(len(train), plan.seed))
    held_out = _drawn(validation, drawn_rows(len(validation), plan.seed, MAX_HELD_OUT))
    train_NF, held_out_NF = (row_states(backbone, rows, layers, pad_token_id) for rows in (train, held_out))
    labels_N = None
    if kind_of(plan).has_one_label and train.labels is not None:
        labels_N = train.labels.astype(np.int64)
    return sums_of(train_NF, layers, held_out_NF, labels_N)


def _drawn(rows: TokenisedRows, numbers: Sequence[int]) -> TokenisedRows:
    return rows if len(numbers) == len(rows) else rows.take(numbers)


def drawn_rows(num_rows: int, seed: int, most: int | None = None) -> Sequence[int]:
    """Return the indices of the rows of a split that are read, ascending: at most ``most``, by default `MAX_ROWS`."""
    most = MAX_ROWS if most is None else most
    if num_rows <= most:
        return range(num_rows)
    drawn = np.random.default_rng(derive_seed(seed, "router")).choice(num_rows, most, replace=False)
    return [int(row) for row in np.sort(drawn)]
