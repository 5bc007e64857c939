"""The memory of an endpoint does not grow with the number of different requests."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from continual_petl import learn
from continual_petl.serve import Client, batch_queue, settings
from continual_petl.serve.batch_queue import WorkerThread
from continual_petl.serve.settings import bound_kernel_caches
from tests.serve.test_server import served
from tests.streams_in_code import stream, task

BF16 = pytest.mark.skipif(
    not torch.cpu._is_amx_tile_supported() or sys.platform != "linux", reason="kernels are compiled for bf16 units"
)
_GROWTH = """
import ctypes
from continual_petl.serve.settings import bound_kernel_caches
{bound}
import torch
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
def used():
    found = libc.mallinfo2()
    return found.h + found.e  # in the heap, and in blocks of their own
layer = torch.nn.Linear(384, 1536, dtype=torch.bfloat16)
def compute(sizes):
    with torch.no_grad():
        for size in sizes:
            layer(torch.zeros(size, 384, dtype=torch.bfloat16))
compute(range(20, 220))
before = used()
compute(range(220, 620))
print(used() - before)
"""


def _grown(bound: str) -> int:
    environment = {name: value for name, value in os.environ.items() if name not in settings._CACHES}
    script = _GROWTH.format(bound=bound)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@BF16
@pytest.mark.slow
def test_compiled_kernels_are_bounded() -> None:
    """400 further shapes take 200 MB without the limits."""
    assert _grown("") > 100 * 2**20
    assert _grown("bound_kernel_caches()") < 10 * 2**20


def test_limits_that_the_user_has_set_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    oneDNN, torchs = settings._CACHES
    monkeypatch.setenv(oneDNN, "7")
    monkeypatch.delenv(torchs, raising=False)
    monkeypatch.setitem(os.environ, torchs, "x")  # so that the test leaves no trace
    del os.environ[torchs]
    bound_kernel_caches()
    assert (os.environ[oneDNN], os.environ[torchs]) == ("7", "128")


def test_thread_that_computes_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_queue, "CALLS_PER_THREAD", 3)

    async def run() -> list[threading.Thread]:
        worker = WorkerThread("w")
        found = [await worker.call(threading.current_thread) for _ in range(7)]
        worker.stop()
        return found

    found = asyncio.run(run())
    assert [found.index(each) for each in found] == [0, 0, 0, 3, 3, 3, 6]
    assert not any(thread.is_alive() for thread in found)


def _memory(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024


@BF16
@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_requests(tmp_path: Path) -> None:
    """With MiniLM in bf16; without the limits, requests like these add 800 MB to what the largest batch has left."""
    tasks = [task(f"t{number}", num_rows=32) for number in range(3)]
    training = {"epochs": 1, "precision": "bf16"}
    minilm = {"backbone": {"name": "minilm"}, "training": training}
    learn(stream(Path("minilm"), tasks, **minilm), tmp_path / "run", progress=False)
    draw = random.Random(3)

    def rows(number: int) -> list[str]:
        return [" ".join(draw.choices(["science", "market", "game"], k=draw.randint(1, 120))) for _ in range(number)]

    with served(tmp_path / "run", fresh=True) as (process, address), Client(address) as client:
        client.predict([" ".join(["market"] * 120)] * 64, "t0")

        before = _memory(process.pid)
        for _ in range(600):
            texts = rows(draw.choice([1, 2, 3, 5, 8]))
            client.predict(texts, [draw.choice(["t0", "t1", "t2"]) for _ in texts])
        assert _memory(process.pid) - before < 450
