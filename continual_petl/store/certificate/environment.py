"""The environment that determines the last bits of an output: software versions, device, number of threads."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from continual_petl._strict_model import StrictModel
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
"""Environment variables that change the arithmetic of the libraries used by torch."""


class Environment(StrictModel):
    """Software and hardware. The same environment gives the same bits; in another, outputs may differ by rounding."""

    python: str
    torch: str
    transformers: str
    continual_petl: str
    machine: str
    device: str
    """cpu, or the name of the accelerator."""
    capability: str
    """Instruction set of a CPU, or compute capability of a GPU."""
    num_threads: int
    precision: Literal["bf16", "fp32"]
    """Dtype of the backbone's weights in memory."""
    attention: str
    """Attention implementation."""
    processor: str = ""
    """CPU model, which libraries use to select kernels even within one instruction set; empty if unknown."""
    switches: str = ""
    """Settings that change the libraries' default arithmetic; empty if there are none."""

    def differences(self, other: Environment) -> list[str]:
        """Describe the differences that can change output bits."""
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
    """Return the arithmetic settings made in Python: matmul precision, deterministic algorithms, oneDNN."""
    import torch

    return (
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        bool(torch.backends.mkldnn.enabled),
    )


def compute_as(num_threads: int, settings: tuple[str, bool, bool]) -> None:
    """Set the number of threads of this process, and the settings that `arithmetic` returned."""
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
    # A virtual machine may hide the name of the CPU model, but not its family and model numbers.
    keys = ("vendor_id", "model name", "cpu family", "model")
    return " ".join(facts[key] for key in keys if key in facts) or platform.processor()


def _switches() -> list[str]:
    import torch

    switches = [f"{name}={os.environ[name]}" for name in SWITCHES if os.environ.get(name)]
    if torch.get_float32_matmul_precision() != "highest":
        switches.append(f"float32_matmul_precision={torch.get_float32_matmul_precision()}")
    if not torch.backends.mkldnn.enabled:
        switches.append("mkldnn=off")
    return switches
