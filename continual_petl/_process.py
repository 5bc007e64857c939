"""Settings of a process for torch, transformers and Lightning: garbage collection during imports, freed memory, and how long
idle threads spin.

The imports create about a million objects, nearly all of which exist until the process ends. Python's garbage collector would
traverse them many times during the imports, and once more at the end: together, a third of the time of a short command.

By default, glibc returns large freed blocks to the system, which must provide and clear their pages again for the next
tensor. Predicting a batch of 64 x 64 tokens with MiniLM then causes 35,000 page faults, which take an eighth of the time.

By default, a thread of GNU's OpenMP that waits for the others spins for milliseconds. That is fastest on an idle machine; but
if other processes need the cores, the thread keeps them from the very thread that it waits for, and training takes several
times as long. So a command on a busy machine, an endpoint, which shares the cores with its clients, and workers let waiting
threads sleep after `SPINS` rounds.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_HEAVY = ("torch", "transformers.modeling_utils", "lightning")
_MALLOC_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
"""The parameters of mallopt(3) that these environment variables set."""
_MOST_KEPT_BYTES = 2**30
"""At most this much free memory is kept at the end of the heap; smaller blocks are not allocated outside of it."""
_MOST_IN_OLD_GLIBC = 2**25
"""glibc before 2.35 refuses to allocate larger blocks in the heap."""
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""The variables that set how threads wait; GNU's OpenMP reads them when torch is imported."""
SPINS = "1000"
"""Rounds that a waiting thread spins, a few microseconds; ``python -m experiments.benchmarks.waiting`` compares settings."""
_SAMPLES, _SECONDS_BETWEEN = 4, 0.003
chose_spins = False
"""Whether this process set GOMP_SPINCOUNT itself."""
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
            resume_collection()
        else:
            gc.enable()


def own_process(*, shares_cores: bool) -> None:
    """Record that this process only runs this package, and choose how its threads wait, unless the user has chosen.

    Args:
        shares_cores: whether other processes will need the cores, whatever runs now; otherwise waiting threads sleep soon
            only if the machine is busy.
    """
    global _is_own, chose_spins
    _is_own = True
    if sys.platform != "linux" or any(name in os.environ for name in WAITING):
        return
    if shares_cores or is_busy():
        os.environ["GOMP_SPINCOUNT"], chose_spins = SPINS, True


def is_busy() -> bool:
    """Return whether other processes use an eighth of the cores now, at least one.

    The load average is no measure of this: it includes the command that ended a minute ago.
    """
    most = max(1, (os.cpu_count() or 1) // 8)
    return min(_num_running(number) for number in range(_SAMPLES)) - 1 >= most  # this process is one of them


def _num_running(number: int) -> int:
    """Return how many threads run or could run now, in all processes; 0 if the system does not say."""
    if number:
        time.sleep(_SECONDS_BETWEEN)
    try:
        with open("/proc/loadavg", encoding="ascii") as file:
            return int(file.read().split()[3].partition("/")[0])
    except (OSError, LookupError, ValueError):
        return 0


def pause_collection() -> None:
    """Pause garbage collection in a worker process until `resume_collection`; receiving its first call imports torch."""
    own_process(shares_cores=True)
    gc.disable()


def resume_collection() -> None:
    """Resume garbage collection, but exempt everything that has been imported so far."""
    gc.freeze()
    gc.enable()
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Let this process keep the memory of freed tensors for later ones, with glibc and unless the user has configured it."""
    if sys.platform != "linux" or any(name in os.environ for name in _MALLOC_VARIABLES):
        return
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have no such function
    # A fixed limit for the trimming of the heap also fixes the size above which blocks are allocated outside of it, at only
    # 128 KiB, so that size is set first.
    if mallopt and (mallopt(_MMAP_THRESHOLD, _MOST_KEPT_BYTES) or mallopt(_MMAP_THRESHOLD, _MOST_IN_OLD_GLIBC)):
        mallopt(_TRIM_THRESHOLD, _MOST_KEPT_BYTES)


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int:
    """Return the memory of this machine, or of the container that this process runs in, in bytes; 0 if it is not known."""
    try:
        whole: int = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            return min(whole, int(file.read()))
    except (OSError, ValueError):  # no such file, or "max"
        return whole
