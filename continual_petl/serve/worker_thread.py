"""One thread that computes, replaced by a new one from time to time.

torch keeps the kernels of scaled dot product attention as long as the thread that compiled them exists: for bf16 on a CPU,
several of about 200 kB for each length of a batch, without a limit (``KernelCache`` in ``aten/src/ATen/native/CPUBlas.cpp``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

_T = TypeVar("_T")
_P = ParamSpec("_P")
CALLS_PER_THREAD = 200
"""Compiling the kernels again takes a few milliseconds per length."""


class WorkerThread:
    """Computes one call at a time.

    Args:
        name: first part of the thread's name.
    """

    def __init__(self, name: str) -> None:
        self._name, self._num_calls = name, 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def call(self, act: Callable[_P, _T], *args: _P.args, **more: _P.kwargs) -> _T:
        """Return what a function returns; it must not be called before the previous call has ended."""
        if self._num_calls == CALLS_PER_THREAD:
            self.stop()
            self._pool, self._num_calls = ThreadPoolExecutor(1, thread_name_prefix=self._name), 0
        self._num_calls += 1
        return await asyncio.wrap_future(self._pool.submit(act, *args, **more))

    def stop(self) -> None:
        """End the thread."""
        self._pool.shutdown()
