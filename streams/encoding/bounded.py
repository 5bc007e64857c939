"""Limits on the time and memory of code that is not trusted, such as a chat template.

Jinja's sandbox prevents access, not exhaustion: ``{{ 'a' * 10**9 }}`` and nested loops are allowed. Here the address space of
the process may grow only a little while such code runs, so that Python raises `MemoryError`, and a thread interrupts it after
some seconds. The limit on memory is that of the whole process, so it is only set on Linux and in the main thread: in a thread
of an endpoint, it could stop another thread that computes predictions meanwhile.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

MAX_SECONDS = 10.0
MAX_BYTES = 2**28
"""Additional memory; far more than any conversation needs."""
_lock = threading.RLock()


class TooLong(Exception):
    """The code took longer than it may."""


@contextmanager
def bounded(seconds: float = MAX_SECONDS, num_bytes: int = MAX_BYTES) -> Iterator[None]:
    """Limit the block's time and memory. One block runs at a time in a process.

    Args:
        seconds: maximum time.
        num_bytes: maximum memory in addition to that of the process.

    Raises:
        TooLong: if it takes longer. A single call of compiled code is only interrupted when it returns.
        MemoryError: if it takes more memory.
    """
    with _lock, _memory(num_bytes), _time(seconds):
        yield


@contextmanager
def _memory(num_bytes: int) -> Iterator[None]:
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        limit = int(file.read().split()[0]) * resource.getpagesize() + num_bytes
    for known in before:
        limit = limit if known == resource.RLIM_INFINITY else min(limit, known)
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def _time(seconds: float) -> Iterator[None]:
    thread, ended, guard = ctypes.c_ulong(threading.get_ident()), False, threading.Lock()

    def interrupt() -> None:
        with guard:
            if not ended:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TooLong))

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with guard:
            ended = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)  # if it came after the last line of the block
