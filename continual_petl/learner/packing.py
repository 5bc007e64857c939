"""Checks that a backbone computes the rows of a packed window as if each were alone; the built-in families all do.

`transformers` recognises windows by their positions, but a model with its own code may not. Short forward passes reveal this:
a row's states must not change by a single bit when its neighbour in the window changes, and must equal the states of the row
on its own, up to rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.attach import locked
from continual_petl.errors import InputError

_ROUNDING = 0.05
"""Allowed relative difference; in bf16, matrix products of different sizes differ by less than 0.01."""


@torch.no_grad()
def check_packing(task: str, backbone: Backbone) -> None:
    """Raise `InputError` if a row of a packed window would see the other rows of its window."""
    model: Any = backbone.model

    def states(before: list[int], positions: list[int]) -> Tensor:
        ids = torch.tensor([[*before, 5, 6, 7]], device=model.device) % model.config.vocab_size
        position_ids = torch.tensor([positions], device=model.device)
        output = model.base_model(input_ids=ids, position_ids=position_ids, use_cache=False)
        own_states: Tensor = output.last_hidden_state[:, len(before) :]
        return own_states

    try:
        with locked(model):
            packed, repacked = (states(before, [0, 1, 0, 1, 2]) for before in ([1, 2], [3, 4]))
            alone = states([], [0, 1, 2])
        apart = torch.equal(packed, repacked) and bool((packed - alone).norm() <= _ROUNDING * alone.norm())
    except TypeError:  # a model that takes no positions
        apart = False
    if not apart:
        raise InputError(
            f"task {task!r}: training.packing is on, but backbone {backbone.name!r} does not keep the rows of a "
            "window apart: its code ignores the positions by which transformers recognises packed rows, so a row would see "
            "the rows before it. Write packing: false."
        )
