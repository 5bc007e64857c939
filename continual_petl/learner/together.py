"""Computes the outputs of each task for a batch of several tasks; rows of one task are contiguous.

Shape suffixes: B rows, W tokens, D width of the backbone, N rows of one task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from continual_petl.backbones import Pooling
from continual_petl.backbones.backbone import Backbone, pool
from continual_petl.banks.bank import Bank
from continual_petl.banks.mixed.run import Share, run_together
from continual_petl.banks.mixed.stacks import Stacks
from continual_petl.kind import kind_of
from continual_petl.learner.answer import head_of, reading_inputs
from continual_petl.learner.task_plan import TaskPlan


class Part(NamedTuple):
    """A task, and how many rows of the batch are its own."""

    plan: TaskPlan
    bank: Bank
    num_rows: int


@torch.no_grad()
def respond_together(
    backbone: Backbone, parts: Sequence[Part], batch: dict[str, Tensor], stacks: Stacks | None = None
) -> list[Tensor]:
    """Return the outputs of each task's bank for its rows; see `respond`, with ``tags=False``.

    Args:
        backbone: the backbone that the banks act on.
        parts: the tasks in the order of their rows, none of them generative. See `run_together` for banks that can share a
            pass.
        batch: an evaluation batch, with the rows of the first task before those of the second, and so on.
        stacks: see `run_together`.

    Raises:
        ValueError: if the banks cannot share a pass.
    """
    shares = [Share(part.bank, part.num_rows) for part in parts]
    output = run_together(backbone.model, shares, reading_inputs(backbone, batch), stacks)
    pooled: dict[Pooling, Tensor] = {}
    outputs, start = [], 0
    for plan, bank, num_rows in parts:
        rows = slice(start, start + num_rows)
        start += num_rows
        head = head_of(bank)
        if kind_of(plan).per_word:
            outputs.append(head(output.last_hidden_state[rows].float()))
            continue
        if plan.pooling not in pooled:
            pooled[plan.pooling] = pool(output, batch.get("attention_mask"), plan.pooling)
        outputs.append(head(pooled[plan.pooling][rows]))
    return outputs
