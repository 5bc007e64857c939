"""Time work, in this process and in the workers.

Work is timed either by wall-clock time, as users experience it, or, on a machine with other load, by processor time: the
seconds that all threads of this process were busy. This includes threads that wait for each other, so it requires a single
thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

import torch

Clock = Literal["wall", "cpu"]
_CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
_in_use = ["wall"]


def use_clock(name: Clock) -> None:
    """Use this clock for all timing in this process from now on."""
    _in_use[0] = name


def now(device: str) -> float:
    """Return the time; on a GPU, after all queued work has finished."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
    return _CLOCKS[_in_use[0]]()


def seconds(device: str, work: Callable[[], Any]) -> float:
    """Return the seconds that ``work`` takes."""
    started = now(device)
    work()
    return now(device) - started
