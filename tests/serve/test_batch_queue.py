"""A queue: which requests share a batch, when a batch starts, and what happens at the limits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continual_petl.serve.batch_queue import BatchQueue
from continual_petl.serve.problems import Problem


@dataclass(frozen=True)
class Rows:
    """A job: its name and number of rows."""

    name: str
    num_rows: int = 1
    alone: bool = False


class Recorder:
    """Answers with names in upper case and records the batches; if ``held``, batches wait until ``go`` is set."""

    def __init__(self, *, held: bool = False) -> None:
        self.batches: list[list[str]] = []
        self.go, self.started = threading.Event(), threading.Event()
        if not held:
            self.go.set()

    def __call__(self, jobs: Sequence[Rows]) -> list[str | Problem]:
        self.batches.append([job.name for job in jobs])
        self.started.set()
        self.go.wait(20)
        if any(job.name == "fault" for job in jobs):
            raise RuntimeError("a fault")
        return [Problem(422, "bad", job.name) if job.name == "bad" else job.name.upper() for job in jobs]


def _with(
    use: Callable[[BatchQueue[Rows, str], Recorder], Awaitable[Any]], *, held: bool = False, **settings: Any
) -> Recorder:
    recorder = Recorder(held=held)

    async def run() -> None:
        queue = BatchQueue[Rows, str](
            "labels", recorder, **{"batch_rows": 4, "window_ms": 20, "max_waiting": 8} | settings
        )
        queue.start()
        try:
            await use(queue, recorder)
        finally:
            recorder.go.set()
            await queue.stop()

    asyncio.run(run())
    return recorder


async def _started(recorder: Recorder) -> None:
    await asyncio.to_thread(recorder.started.wait, 20)


def test_requests_within_the_window_share_a_batch() -> None:
    async def use(queue: BatchQueue[Rows, str], recorder: Recorder) -> None:
        found = await asyncio.gather(*(queue.answer([Rows(name)]) for name in "abc"))
        assert found == [["A"], ["B"], ["C"]]

    assert _with(use).batches == [["a", "b", "c"]]


def test_full_batch_starts_before_the_window_ends() -> None:
    async def use(queue: BatchQueue[Rows, str], recorder: Recorder) -> None:
        await asyncio.wait_for(asyncio.gather(*(queue.answer([Rows(name)]) for name in "abcd")), 30)

    assert _with(use, window_ms=60_000).batches == [["a", "b", "c", "d"]]


def test_batch_fills_while_another_is_computed() -> None:
    async def use(queue: BatchQueue[Rows, str], recorder: Recorder) -> None:
        first = asyncio.ensure_future(queue.answer([Rows("a", 4)]))
        await _started(recorder)
        others = [asyncio.ensure_future(queue.answer([Rows(name, 2)])) for name in "bcd"]
        await asyncio.sleep(0)
        assert queue.num_waiting == 6
        recorder.go.set()
        await asyncio.gather(first, *others)

    assert _with(use, held=True).batches == [["a"], ["b", "c"], ["d"]]


def test_rows_beyond_the_limit_are_refused_with_the_time_to_wait() -> None:
    async def use(queue: BatchQueue[Rows, str], recorder: Recorder) -> None:
        first = asyncio.ensure_future(queue.answer([Rows("a", 4)]))
        await _started(recorder)
        others = [asyncio.ensure_future(queue.answer([Rows(name, 4)])) for name in "bc"]
        await asyncio.sleep(0)
        with pytest.raises(Problem, match="8 rows are waiting; at most 8 are allowed: try again later") as caught:
            await queue.answer([Rows("d")])
        assert (caught.value.status, caught.value.retry_after) == (429, 1)
        assert caught.value.headers() == {"retry-after": "1"}
        recorder.go.set()
        assert list(await asyncio.gather(first, *others)) == [["A"], ["B"], ["C"]]

    _with(use, held=True)


def test_cancelled_request_leaves_the_queue() -> None:
    async def use(queue: BatchQueue[Rows, str], recorder: Recorder) -> None:
        first = asyncio.ensure_future(queue.answer([Rows("a", 4)]))
        await _started(recorder)
        gone, kept = (asyncio.ensure_future(queue.answer([Rows(name, 2)])) for name in "bc")
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert queue.num_waiting == 2
        recorder.go.set()
        assert list(await asyncio.gather(first, kept)) == [["A"], ["C"]]

    assert _with(use, held=True).batches == [["a"], ["c"]]


def test_one_problem_is_raised_for_its_request_only() -> None:
    async def use(queue: BatchQueue[Rows, str], recorder: Recorder) -> None:
        found = await asyncio.gather(queue.answer([Rows("bad")]), queue.answer([Rows("b")]), return_exceptions=True)
        assert isinstance(found[0], Problem)
        assert found[1] == ["B"]

    _with(use)


def test_fault_ends_its_batch_but_not_the_lane() -> None:
    async def use(queue: BatchQueue[Rows, str], recorder: Recorder) -> None:
        with pytest.raises(RuntimeError, match="a fault"):
            await queue.answer([Rows("fault")])
        assert await queue.answer([Rows("a")]) == ["A"]

    _with(use)


def test_fault_of_one_request_does_not_affect_others() -> None:
    async def use(queue: BatchQueue[Rows, str], recorder: Recorder) -> None:
        found = await asyncio.gather(queue.answer([Rows("fault")]), queue.answer([Rows("b")]), return_exceptions=True)
        assert isinstance(found[0], RuntimeError)
        assert found[1] == ["B"]

    _with(use)


def test_panic_does_not_end_the_lane() -> None:
    """The tokenizers library can raise panics, which are not subclasses of `Exception`."""

    class Panic(BaseException):
        pass

    async def use(queue: BatchQueue[Rows, str], recorder: Recorder) -> None:
        queue._compute, before = lambda jobs: (_ for _ in ()).throw(Panic("index out of range")), queue._compute
        with pytest.raises(RuntimeError, match="Panic: index out of range"):
            await asyncio.wait_for(queue.answer([Rows("a")]), 20)
        queue._compute = before
        assert await asyncio.wait_for(queue.answer([Rows("a")]), 20) == ["A"]

    _with(use)


def test_stop_computes_waiting_jobs_and_refuses_new_ones() -> None:
    async def use(queue: BatchQueue[Rows, str], recorder: Recorder) -> None:
        first = asyncio.ensure_future(queue.answer([Rows("a", 4)]))
        await _started(recorder)
        second = asyncio.ensure_future(queue.answer([Rows("b", 4)]))
        await asyncio.sleep(0)
        stopping = asyncio.ensure_future(queue.stop())
        await asyncio.sleep(0)
        with pytest.raises(Problem, match="the endpoint is stopping"):
            await queue.answer([Rows("c")])
        recorder.go.set()
        assert list(await asyncio.gather(first, second)) == [["A"], ["B"]]
        await stopping

    _with(use, held=True)


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=12), window=st.sampled_from([0.0, 1.0]))
def test_every_request_gets_its_own_outcome(sizes: list[int], window: float) -> None:
    async def use(queue: BatchQueue[Rows, str], recorder: Recorder) -> None:
        requests = [[Rows(f"{number}-{part}", size) for part in range(2)] for number, size in enumerate(sizes)]
        found = await asyncio.gather(*map(queue.answer, requests))
        assert found == [[job.name.upper() for job in jobs] for jobs in requests]

    recorder = _with(use, window_ms=window, max_waiting=1000)
    order = [name for batch in recorder.batches for name in batch]
    assert order == [f"{number}-{part}" for number in range(len(sizes)) for part in range(2)]
    for batch in recorder.batches:
        assert len(batch) == 1 or sum(sizes[int(name.split("-")[0])] for name in batch) <= 4
