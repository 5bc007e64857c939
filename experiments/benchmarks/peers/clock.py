"""How work is timed, here and in the workers.

By the wall, as users wait; or, for a look at a machine that does other things too, by the processor: the seconds that all
threads of this process were at work. That also counts threads that wait for each other, so it goes with one.
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
    """Time everything in this process by this clock from now on."""
    _in_use[0] = name


def now(device: str) -> float:
    """Return what the clock shows; on a GPU when all that was asked of it has ended."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
    return _CLOCKS[_in_use[0]]()


def seconds(device: str, work: Callable[[], Any]) -> float:
    """Return how long something takes."""
    started = now(device)
    work()
    return now(device) - started
