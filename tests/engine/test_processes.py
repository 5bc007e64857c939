"""A worker process ends with its run, even while starting, and reports why it cannot start."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import InputError, StoreError, learn
from continual_petl.engine.parallel import processes
from continual_petl.engine.parallel.executors import Pool
from continual_petl.engine.parallel.processes import Processes, Slot, WorkerDied
from continual_petl.engine.parallel.worker import setup_of
from continual_petl.engine.session import Session
from continual_petl.store.store import Store
from tests.engine.parallel_run import is_alive
from tests.house import ROOT
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
NO_BRIEF: Any = None

SCRIPT = """
import time
from continual_petl.engine.parallel.processes import Slot
slot = Slot(None)
slot.start()
while slot._pid is None:
    time.sleep(0.01)
print(slot._pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc of Linux")
def test_killing_the_run_ends_all_workers_even_starting_ones() -> None:
    with subprocess.Popen([sys.executable, "-c", SCRIPT], cwd=ROOT, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        worker = int(started.stdout.readline())
        assert is_alive(worker)
        started.kill()
    assert started.returncode == -signal.SIGKILL
    until = time.monotonic() + 60
    while is_alive(worker) and time.monotonic() < until:
        time.sleep(0.02)
    assert not is_alive(worker)


class NeverOpen:
    """Stands in for a setup whose modules take long to import."""

    def opened(self, signals: tuple[int, ...]) -> Any:
        time.sleep(600)


def test_worker_killed_while_starting_has_not_begun() -> None:
    never: Any = NeverOpen()
    slot = Slot(never)
    slot.start()
    until = time.monotonic() + 60
    while slot._pid is None and time.monotonic() < until:
        time.sleep(0.01)
    slot.signal(signal.SIGKILL)
    with pytest.raises(WorkerDied) as told:
        slot.submit("one")
    assert not told.value.began
    slot.close()


def test_process_that_cannot_be_started_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __init__(self, *args: Any, **more: Any) -> None: ...

        def submit(self, *args: Any) -> None:
            raise BlockingIOError(11, "Resource temporarily unavailable")

        def shutdown(self, **more: Any) -> None: ...

    monkeypatch.setattr(processes, "ProcessPoolExecutor", Full)
    slot = Slot(NO_BRIEF)
    for _ in range(2):
        with pytest.raises(WorkerDied) as told:
            slot.submit("one")
        assert not told.value.began


def test_no_worker_is_started_after_a_stop() -> None:
    workers = Processes(NO_BRIEF, 1)
    workers.stop()
    with pytest.raises(WorkerDied):
        workers.learn("one")
    assert multiprocessing.active_children() == []


def test_worker_reports_why_it_cannot_start(backbone_folder: Folder, tmp_path: Path) -> None:
    session = Session(stream(backbone_folder(), [task("one")]).spec, Store(tmp_path / "run"))
    assert "sees no run folder here" in processes._open(setup_of(session))
    assert "a worker cannot open the run: AttributeError: " in processes._open(NO_BRIEF)


def test_script_without_main_guard_gets_an_error_instead_of_hanging(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python sets this in a process that imports the main script of its parent.
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(InputError, match=r"jobs: a worker imports the script .* under `if __name__ == \"__main__\":`"):
        Pool(2, "processes")

    def lock(store: Store, *, wait: bool = False) -> Any:
        raise StoreError(f"in use; wait: {wait}")

    monkeypatch.setattr(Store, "lock", lock)
    with pytest.raises(StoreError, match="in use; wait: False"):
        learn(stream(backbone_folder(), [task("one")]), tmp_path / "run", wait=True)
