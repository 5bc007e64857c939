"""The device that holds a run's backbone: the first device of the stream's Trainer.

Lightning moves a module to the device of its Trainer for a fit, and to the CPU afterwards. A run instead keeps its backbone
on that device, so that everything is computed there: probes, statistics for the router, checks and predictions.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def device_of(trainer: Mapping[str, Any]) -> torch.device:
    """Return the device of this process for a stream's ``trainer`` section.

    It is a GPU only if torch calls it cuda (NVIDIA and AMD). On other accelerators, only training and evaluation take place,
    and everything else is computed on the CPU; likewise if the backbone is divided among several devices.

    Args:
        trainer: arguments of Lightning's Trainer; ``accelerator``, ``devices`` and ``strategy`` are read.

    Example:
        >>> device_of({"accelerator": "cpu"})
        device(type='cpu')
    """
    wanted = trainer.get("accelerator", "auto") in ("auto", "gpu", "cuda") and trainer.get("strategy") != "fsdp2"
    if not (wanted and torch.cuda.is_available()):
        return torch.device("cpu")
    devices = trainer.get("devices", 1)
    if isinstance(devices, str) and "," in devices:
        devices = [int(number) for number in devices.split(",") if number.strip()]
    # Each of several processes that train one task together has a device of its own; Lightning sets the variable.
    rank = 0 if devices in (1, "1") else int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", devices[rank] if isinstance(devices, list | tuple) else rank)


@contextmanager
def staying(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Move a module back to its device after the ``with`` block, in which a Trainer moves it to the CPU when it ends."""
    try:
        yield
    finally:
        if device.type != "cpu":
            module.to(device)
