"""What an answer's last bits depend on beside the weights: software, device, number of threads."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version

import torch

from continual_petl._frozen import FrozenModel
from continual_petl._version import VERSION


class Environment(FrozenModel):
    """The same environment gives the same bits; in another one answers may differ by rounding."""

    python: str
    torch: str
    transformers: str
    continual_petl: str
    machine: str
    device: str
    """cpu, or the name of the accelerator."""
    capability: str
    """Instruction set of a CPU, compute capability of a GPU."""
    num_threads: int
    precision: str
    """Dtype of the backbone's weights in memory."""
    attention: str
    """Attention implementation."""

    def differences(self, other: Environment) -> list[str]:
        """Return what differs and can change bits, as sentences."""
        mine, theirs = self.model_dump(), other.model_dump()
        keys = [key for key in mine if key not in {"python", "continual_petl"} and mine[key] != theirs[key]]
        return [f"{key} was {mine[key]}, is {theirs[key]}" for key in keys]


def current_environment(device: torch.device, precision: str, attention: str) -> Environment:
    """Describe the environment of this process."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    else:
        name, capability = device.type, torch.backends.cpu.get_cpu_capability()
    return Environment(
        python=".".join(map(str, sys.version_info[:3])),
        torch=torch.__version__,
        transformers=version("transformers"),
        continual_petl=VERSION,
        machine=platform.machine(),
        device=name,
        capability=capability,
        num_threads=torch.get_num_threads(),
        precision=precision,
        attention=attention,
    )
