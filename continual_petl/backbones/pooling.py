"""Pooling: reduce the token states of a text or an image to one vector."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from continual_petl.backbones.anatomy import Pooling


def pool(output: Any, mask_BT: Tensor | None, pooling: Pooling) -> Tensor:
    """Return one float32 vector per row.

    Args:
        output: the model's output, with ``last_hidden_state`` (B, T, D).
        mask_BT: 1 for tokens, 0 for padding, which may be on either side; None if there is no padding (images).
        pooling: the pooling to apply.
    """
    if pooling == "pooler":
        return cast(Tensor, output.pooler_output).float()
    states_BTD = cast(Tensor, output.last_hidden_state)
    if pooling == "first":
        return states_BTD[:, 0].float()
    if mask_BT is None:
        mask_BT = states_BTD.new_ones(states_BTD.shape[:2], dtype=torch.long)
    if pooling == "last":
        places_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
        last_B = (places_T * (mask_BT != 0)).argmax(1)
        return states_BTD[torch.arange(len(states_BTD), device=states_BTD.device), last_B].float()
    weights_BT1 = mask_BT.unsqueeze(-1).float()
    return (states_BTD.float() * weights_BT1).sum(1) / weights_BT1.sum(1).clamp(min=1)
