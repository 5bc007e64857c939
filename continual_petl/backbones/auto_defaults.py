"""The attention and precision that ``auto`` selects on this machine, for each type of device, with measurements.

The selection is written into every certificate. A run continues with the attention it was started with, and a bank predicts
with the attention that its certificate records, so changing this table only affects new runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Device = Literal["cuda", "old cuda", "cpu with bf16 units", "cpu"]


@dataclass(frozen=True, kw_only=True)
class Fastest:
    """The fastest settings on one type of device."""

    attention: Literal["eager", "sdpa"]
    """What banks predict with; certificates record it, and their probe outputs and scores are computed with it."""
    training_attention: Literal["eager", "sdpa"]
    """What banks are trained with."""
    precision: Literal["bf16", "fp32"]
    evidence: str
    """The measurements that support the choice."""


BF16_UNITS = ("amx_bf16", "avx512_bf16")
"""Instruction sets that multiply bf16 matrices, by their names in torch."""
FASTEST: dict[Device, Fastest] = {
    "cuda": Fastest(
        attention="sdpa",
        training_attention="sdpa",
        precision="bf16",
        evidence="NVIDIA H200, bert-base, batch 32 x 128, full fine-tuning with transformers, means of three steps, in three "
        "processes: bf16 with sdpa 17, 17 and 23 ms, with eager 20, 19 and 21 ms; fp32 56 to 59 ms. Predictions were not "
        "measured separately",
    ),
    "old cuda": Fastest(
        attention="sdpa",
        training_attention="sdpa",
        precision="fp32",
        evidence="not measured; GPUs before Ampere have no hardware support for bf16 and emulate it",
    ),
    "cpu with bf16 units": Fastest(
        attention="eager",
        training_attention="eager",
        precision="bf16",
        evidence="AMX: MiniLM, a bank in every layer, batch 32 x 64, bf16 weights, two cores: eager 108 examples/s, sdpa "
        "77, for training; predictions not measured separately; full fine-tuning in bf16 1.6 times as fast as in fp32. "
        "AVX512-BF16 (AMD EPYC, two cores, batch 64 x 64, medians of 5 alternating runs): predicting with one bank takes "
        "0.50 of the time in fp32 (lora: 0.48); eager and sdpa equal within 1 %",
    ),
    "cpu": Fastest(
        attention="sdpa",
        training_attention="eager",
        precision="fp32",
        evidence="MiniLM, houlsby 48, fp32, AVX2, torch 2.13, medians of 7 alternating runs, CPU seconds with sdpa divided "
        "by those with eager: learning 0.98 (32 x 64 and 32 x 128; two threads, 32 x 64: 1.06), so there is no clear winner "
        "and the attention of earlier runs is kept; predicting 0.94 and 0.92. With AVX-512, 64 x 64, predicting with one "
        "bank, 32 and 256: 0.95, 0.94 and 0.93 (lora: 0.94, 0.97 and 0.94); by wall-clock time with two threads, 5 runs: "
        "0.98, 1.00 and 1.01 (lora: 0.96, 0.94 and 0.91). Precision: a product of (2048, 384) and (384, 1536) took about 110 "
        "times as long in emulated bf16 as in fp32 (two threads, medians of five in one run)",
    ),
}


def this_device() -> Device:
    """Return the type of device on which this machine trains banks."""
    if torch.cuda.is_available():
        return "cuda" if torch.cuda.is_bf16_supported(including_emulation=False) else "old cuda"
    known = torch.cpu.get_capabilities()
    return "cpu with bf16 units" if any(known.get(units) for units in BF16_UNITS) else "cpu"


_of_the_run: Fastest | None = None


def fastest() -> Fastest:
    """Return the settings that ``auto`` selects in this process."""
    return _of_the_run or FASTEST[this_device()]


def select_as(settings: Fastest | None) -> None:
    """Make ``auto`` select these settings, for a run that was started on another machine; None: this machine's own."""
    global _of_the_run
    _of_the_run = settings


def resolve_precision(asked: Literal["auto", "bf16", "fp32"]) -> Literal["bf16", "fp32"]:
    """Return the dtype of the backbone's weights in memory; banks are always kept in float32.

    ``auto`` is the fastest precision on this device: bf16 with hardware support (GPUs since Ampere, CPUs with AMX or
    AVX512-BF16), fp32 otherwise.
    """
    return fastest().precision if asked == "auto" else asked
