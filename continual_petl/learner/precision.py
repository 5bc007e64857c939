"""Which arithmetic the frozen backbone runs in when a stream says ``precision: auto``."""

from __future__ import annotations

from typing import Literal

from continual_petl.backbones.auto_defaults import fastest
from continual_petl.backbones.backbone import Precision


def resolve_precision(asked: Literal["auto", "bf16", "fp32"]) -> Precision:
    """Return the dtype of the backbone's weights in memory; banks are always kept in float32.

    ``auto`` is what is fastest on this device: bf16 where there are units for it (GPUs since Ampere, CPUs with AMX), fp32
    elsewhere; see `continual_petl.backbones.auto_defaults`.
    """
    return fastest().precision if asked == "auto" else asked
