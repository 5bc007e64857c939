"""What an answer's last bits depend on beside the weights: software, device, number of threads."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from continual_petl._frozen import FrozenModel
from continual_petl._version import VERSION

if TYPE_CHECKING:
    import torch

SWITCHES = (
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "NVIDIA_TF32_OVERRIDE",
)
"""Environment variables by which the libraries under torch choose other arithmetic."""


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
    precision: Literal["bf16", "fp32"]
    """Dtype of the backbone's weights in memory."""
    attention: str
    """Attention implementation."""
    processor: str = ""
    """Model of a CPU: the libraries choose their arithmetic by it, among those of one instruction set too. Empty: unknown."""
    switches: str = ""
    """What was set to choose other arithmetic than the libraries' own choice; empty: nothing."""

    def differences(self, other: Environment) -> list[str]:
        """Return what differs and can change bits, as sentences."""
        mine, theirs = self.model_dump(), other.model_dump()
        left_out = {"python", "continual_petl"} | (
            set() if mine["processor"] and theirs["processor"] else {"processor"}
        )
        keys = [key for key in mine if key not in left_out and mine[key] != theirs[key]]
        return [f"{key} was {mine[key] or 'none'}, is {theirs[key] or 'none'}" for key in keys]


def current_environment(device: torch.device, precision: Literal["bf16", "fp32"], attention: str) -> Environment:
    """Describe the environment of this process."""
    import torch

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
        processor=_processor() if device.type == "cpu" else "",
        switches=", ".join(_switches()),
    )


def arithmetic() -> tuple[str, bool, bool]:
    """Return what was set in Python to choose other arithmetic: precision of products, deterministic algorithms, oneDNN."""
    import torch

    return (
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        bool(torch.backends.mkldnn.enabled),
    )


def compute_as(num_threads: int, settings: tuple[str, bool, bool]) -> None:
    """Have this process compute with so many threads, and with these settings of `arithmetic`."""
    import torch

    torch.set_num_threads(num_threads)
    precision, deterministic, mkldnn = settings
    torch.backends.mkldnn.enabled = mkldnn  # type: ignore[assignment]
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(deterministic)


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    # A virtual machine may hide the name of the model, but not its numbers.
    keys = ("vendor_id", "model name", "cpu family", "model")
    return " ".join(facts[key] for key in keys if key in facts) or platform.processor()


def _switches() -> list[str]:
    import torch

    found = [f"{name}={os.environ[name]}" for name in SWITCHES if os.environ.get(name)]
    if torch.get_float32_matmul_precision() != "highest":
        found.append(f"float32_matmul_precision={torch.get_float32_matmul_precision()}")
    if not torch.backends.mkldnn.enabled:
        found.append("mkldnn=off")
    return found
