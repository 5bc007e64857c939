"""A queue of an endpoint: requests wait in it up to a limit, share batches, and are computed by one thread.

A batch starts when `batch_rows` rows are waiting, or `window_ms` after the first of them arrived. While one batch is
computed, the next one fills up, so a busy endpoint never waits for the window.

The thread is replaced by a new one from time to time: torch keeps the kernels of scaled dot product attention as long as the
thread that compiled them exists; for bf16 on a CPU, several of about 200 kB for each length of a batch, without a limit
(``KernelCache`` in ``aten/src/ATen/native/CPUBlas.cpp``).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, ParamSpec, Protocol, TypeVar

from continual_petl.serve.problems import Problem

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


_J = TypeVar("_J", bound="Sized")


class Sized(Protocol):
    """A job for a queue: some rows of one request."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""

    @property
    def alone(self) -> bool:
        """Whether it must run in a batch of its own."""


@dataclass(eq=False)
class _Waiting(Generic[_J, _T]):
    job: _J
    answer: asyncio.Future[_T]
    since: float = field(default_factory=time.monotonic)


class BatchQueue(Generic[_J, _T]):
    """Computes jobs in shared batches, in the order of their arrival.

    Args:
        name: the queue's name.
        compute: returns an outcome or a `Problem` for each of several jobs; called in the queue's own thread.
        batch_rows: maximum number of rows that are computed together.
        window_ms: how long the first row waits for others, in milliseconds.
        max_waiting: maximum number of waiting rows.
        seen: called with the number of rows of each batch.
    """

    def __init__(
        self,
        name: str,
        compute: Callable[[Sequence[_J]], Sequence[_T | Problem]],
        *,
        batch_rows: int,
        window_ms: float,
        max_waiting: int,
        seen: Callable[[int], None] = lambda rows: None,
    ) -> None:
        self.name, self._compute, self._seen = name, compute, seen
        self._batch_rows, self._window_s, self._max_waiting = batch_rows, window_ms / 1000, max_waiting
        self._queue: deque[_Waiting[_J, _T]] = deque()
        self.num_waiting = 0
        """Number of rows in the queue, not counting those that are being computed."""
        self._changed = asyncio.Event()
        self._closing = False
        self._thread = WorkerThread(f"queue-{name}")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start computing; must be called in a running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self) -> None:
        """Compute all waiting jobs, then stop."""
        self._closing = True
        self._changed.set()
        if self._task is not None:
            await self._task
        self._thread.stop()

    def _check_room(self, num_rows: int) -> None:
        if self._closing:
            message = "the endpoint is stopping: send the request to another one"
            raise Problem(503, "stopping", message, retry_after=5)
        if self.num_waiting + num_rows > self._max_waiting:
            message = (
                f"{self.num_waiting:,} rows are waiting; at most {self._max_waiting:,} are allowed: try again later"
            )
            raise Problem(429, "busy", message, retry_after=1)

    async def answer(self, jobs: Sequence[_J]) -> list[_T]:
        """Return the outcomes of the parts of one request. If the caller is cancelled, waiting parts leave the queue.

        Raises:
            Problem: if there is no room (429), the queue is stopping (503), or one of the parts has a problem.
        """
        self._check_room(sum(job.num_rows for job in jobs))
        loop = asyncio.get_running_loop()
        waiting = [_Waiting[_J, _T](job, loop.create_future()) for job in jobs]
        self._queue.extend(waiting)
        self.num_waiting += sum(job.num_rows for job in jobs)
        self._changed.set()
        try:
            return [await part.answer for part in waiting]
        except BaseException:
            for part in waiting:
                if not part.answer.done():
                    part.answer.cancel()
                elif not part.answer.cancelled():
                    part.answer.exception()  # marks it as retrieved: only the first problem is reported
            self._drop_cancelled()
            raise

    def _drop_cancelled(self) -> None:
        kept = [part for part in self._queue if not part.answer.cancelled()]
        if len(kept) < len(self._queue):
            self._queue = deque(kept)
            self.num_waiting = sum(part.job.num_rows for part in kept)

    async def _work(self) -> None:
        while await self._filled():
            batch = self._next()
            self._seen(sum(part.job.num_rows for part in batch))
            outcomes = await self._thread.call(self._computed, [part.job for part in batch])
            for part, outcome in zip(batch, outcomes, strict=True):
                if part.answer.done():
                    continue
                if isinstance(outcome, Exception):
                    part.answer.set_exception(outcome)
                else:
                    part.answer.set_result(outcome)

    async def _filled(self) -> bool:
        """Wait until a batch is full, or its first row has waited for the whole window; False: there will be none."""
        while True:
            left = self._queue[0].since + self._window_s - time.monotonic() if self._queue else None
            if self._closing or (left is not None and (left <= 0 or self.num_waiting >= self._batch_rows)):
                return bool(self._queue)
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)

    def _next(self) -> list[_Waiting[_J, _T]]:
        batch: list[_Waiting[_J, _T]] = []
        rows = 0
        while self._queue and (not batch or rows + self._queue[0].job.num_rows <= self._batch_rows):
            if batch and self._queue[0].job.alone:
                break
            batch.append(self._queue.popleft())
            rows += batch[-1].job.num_rows
            if batch[-1].job.alone:
                break
        self.num_waiting -= rows
        return batch

    def _computed(self, jobs: Sequence[_J]) -> Sequence[_T | Exception]:
        """Return the outcomes; a job that fails stops neither the queue nor the other jobs of its batch."""
        try:
            return self._compute(jobs)
        except BaseException as error:  # a panic in the Rust code of tokenizers is not an Exception
            if len(jobs) > 1:
                return [outcome for job in jobs for outcome in self._computed([job])]
            return [error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")]
