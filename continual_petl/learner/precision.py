"""Which arithmetic the frozen backbone runs in when a stream says ``precision: auto``."""

from __future__ import annotations

from typing import Literal

import torch

from continual_petl.backbones.backbone import Precision


def resolve_precision(asked: Literal["auto", "bf16", "fp32"]) -> Precision:
    """Return the dtype of the backbone's weights in memory; banks are always kept in float32.

    ``auto`` is bf16 on devices with units for it (GPUs since Ampere, CPUs with AMX) and fp32 elsewhere. On a CPU without
    such units bf16 is emulated: a product of (2048, 384) and (384, 1536) took about 110 times as long as in fp32 (AVX2, two
    threads, torch 2.13, medians of five in one run).
    """
    if asked != "auto":
        return asked
    if torch.cuda.is_available():
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "bf16" if torch.cpu.get_capabilities().get("amx_bf16") else "fp32"
