"""Which arithmetic the frozen backbone runs in when a stream says ``precision: auto``."""

from __future__ import annotations

from typing import Literal

import torch

from continual_petl.backbones.backbone import Precision


def resolve_precision(asked: Literal["auto", "bf16", "fp32"]) -> Precision:
    """Return the dtype of the backbone's weights in memory; banks are always kept in float32.

    ``auto`` is bf16 on devices with units for it (GPUs since Ampere, CPUs with AMX) and fp32 elsewhere.
    """
    if asked != "auto":
        return asked
    if torch.cuda.is_available():
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "bf16" if torch.cpu._is_amx_tile_supported() else "fp32"
