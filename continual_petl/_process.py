"""Settings of a process for torch, transformers and Lightning: garbage collection during imports, and freed memory.

The imports create about a million objects, nearly all of which exist until the process ends. Python's garbage collector would
traverse them many times during the imports, and once more at the end: together, a third of the time of a short command.

By default, glibc returns large freed blocks to the system, which must provide and clear their pages again for the next
tensor. Predicting a batch of 64 x 64 tokens with MiniLM then causes 35,000 page faults, which take an eighth of the time.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_HEAVY = ("torch", "transformers.modeling_utils", "lightning")
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": -3, "MALLOC_TRIM_THRESHOLD_": -1}
"""Environment variables of glibc, with the parameters of mallopt(3) that they set."""
_KEPT_BYTES = 2**30
"""Blocks below this size are not allocated separately, and this much free memory is kept."""
_is_own = False
"""Whether this process only runs this package: as a command, or as a worker of a run."""


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Pause garbage collection while the block imports; in a process of this package, exempt what was imported from it.

    In any other process, nothing is exempted, because objects of the user's program must remain collectable.
    """
    missing = [name for name in _HEAVY if name not in sys.modules]
    if not missing or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if _is_own and any(name in sys.modules for name in missing):
            gc.freeze()
            keep_freed_memory()
        gc.enable()


def own_process() -> None:
    """Record that this process only runs this package."""
    global _is_own
    _is_own = True


def pause_collection() -> None:
    """Pause garbage collection in a worker process until `resume_collection`: its first call imports what it refers to."""
    own_process()
    gc.disable()


def resume_collection() -> None:
    """Resume garbage collection, but exempt everything that has been imported so far."""
    gc.freeze()
    gc.enable()
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Let this process keep the memory of freed tensors for later ones, with glibc and unless the user has set it up."""
    if sys.platform != "linux" or any(name in os.environ for name in (*_MALLOC, "GLIBC_TUNABLES")):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have no such function
    if mallopt is not None:
        for parameter in _MALLOC.values():
            mallopt(parameter, _KEPT_BYTES)
