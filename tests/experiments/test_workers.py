"""Workers end with the process that started them, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STARTS = """
import os, time
from experiments.studies.workers import started
if __name__ == "__main__":
    with started(1, None) as workers:
        print(workers._pool.submit(os.getpid).result(), flush=True)
        workers._pool.submit(time.sleep, 600)
        time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks in /proc for running processes")
@pytest.mark.slow
def test_a_worker_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "starts.py"
    script.write_text(STARTS, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert alive(worker)
        parent.kill()
        parent.wait()
        until = time.monotonic() + 60
        while alive(worker) and time.monotonic() < until:
            time.sleep(0.2)
        assert not alive(worker)


def alive(number: int) -> bool:
    """Return whether a process is running; a zombie is not."""
    try:
        state = Path(f"/proc/{number}/stat").read_text("utf-8")
    except FileNotFoundError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"
