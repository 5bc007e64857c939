"""The machine and the software that a table was measured with, without paths or host names."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from continual_petl._strict_model import StrictModel
from continual_petl._version import VERSION

ROOT = Path(__file__).parents[2]
UNITS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8", "asimd", "bf16", "sve")
"""CPU features that determine the speed of matrix products, by their names in Linux."""
PACKAGES = ("torch", "transformers", "lightning", "tokenizers", "numpy")


class Machine(StrictModel):
    """The machine and the number of threads, which affect times."""

    processor: str
    units: tuple[str, ...]
    """The features in `UNITS` that the CPU has."""
    cores: int
    """Number of cores available to this process."""
    threads: int
    """Number of threads that torch uses."""
    memory: int
    """Memory in bytes."""
    system: str
    device: str
    """cpu, or the name of the accelerator."""
    device_memory: int | None = None
    """Memory of the accelerator in bytes."""
    load_before: tuple[float, float, float]
    """Average number of running processes over 1, 5 and 15 minutes before the first measurement."""


def describe(device: torch.device) -> Machine:
    """Describe this machine in its current state."""
    cuda = device.type == "cuda"
    return Machine(
        processor=_facts().get("model name", platform.processor() or platform.machine()),
        units=tuple(unit for unit in UNITS if unit in _facts().get("flags", _facts().get("Features", "")).split()),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        device=torch.cuda.get_device_name(device) if cuda else device.type,
        device_memory=torch.cuda.get_device_properties(device).total_memory if cuda else None,
        load_before=os.getloadavg(),
    )


def versions() -> dict[str, str]:
    """Return the versions of the software in this process."""
    found = {"python": platform.python_version(), "continual_petl": VERSION}
    return found | {package: importlib.metadata.version(package) for package in PACKAGES}


def commit(besides: str | None = None) -> tuple[str, bool]:
    """Return the commit of this repository, and whether files differ from it; outside a checkout, the commit is empty.

    Args:
        besides: files that may differ, as a git pathspec.
    """
    left_out = [] if besides is None else ["--", ".", f":(exclude,glob){besides}"]
    try:
        head = _git("rev-parse", "HEAD").strip()
        return head, bool(_git("status", "--porcelain", *left_out).strip())
    except (OSError, subprocess.CalledProcessError):
        return "", True


def write_measured(found: Mapping[str, Any], command: str, machine: Machine, file: Path | None) -> None:
    """Write measurements as JSON, after the command, the commit and the machine; print them if there is no file."""
    revision, changed = commit()
    facts = {"command": command, "commit": revision, "changed": changed, "machine": machine.model_dump(mode="json")}
    text = json.dumps(facts | dict(found), indent=2)
    if file is None:
        print(text)
    else:
        file.write_text(text + "\n", encoding="utf-8")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True, text=True).stdout


def _facts() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
