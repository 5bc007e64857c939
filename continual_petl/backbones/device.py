"""The device that holds a run's backbone: the GPU of the stream's Trainer, if it has exactly one.

Lightning moves a module to the device of its Trainer for a fit, and to the CPU afterwards. A run instead keeps its backbone
on that device, so that everything is computed there: probes, statistics for the router, checks and predictions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def device_of(trainer: Mapping[str, Any]) -> torch.device:
    """Return the device of the backbone for a stream's ``trainer`` section.

    It is a GPU only if torch calls it cuda (NVIDIA and AMD). On other accelerators, and if several devices train a task
    together, only training and evaluation use them; everything else is computed on the CPU.

    Args:
        trainer: arguments of Lightning's Trainer; ``accelerator`` and ``devices`` are read.

    Example:
        >>> device_of({"accelerator": "cpu"})
        device(type='cpu')
    """
    devices = trainer.get("devices", 1)
    if isinstance(devices, str) and devices.rstrip(", ").isdecimal():
        # As in Lightning, "2," is the device with this index, and "2" is a number of devices.
        devices = [int(devices.rstrip(", "))] if "," in devices else int(devices)
    only = devices[0] if isinstance(devices, list | tuple) and len(devices) == 1 else 0 if devices == 1 else None
    if only is None or trainer.get("accelerator", "auto") not in ("auto", "gpu", "cuda"):
        return torch.device("cpu")
    return torch.device("cuda", only) if torch.cuda.is_available() else torch.device("cpu")


@contextmanager
def staying(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Move a module back to its device after the ``with`` block, in which a Trainer moves it to the CPU when it ends."""
    try:
        yield
    finally:
        if device.type != "cpu":
            module.to(device)
