"""``python -m tests.store.many RUN BACKBONE COUNT``: commit banks nobody trained until there are COUNT, and verify them.

The committing is a process of its own, so that the peak of memory is that of verifying.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from continual_petl import Run, learn
from continual_petl.store.store import Store
from experiments.benchmarks.growth import fill
from tests.store.tampering import QUICK, TASKS
from tests.streams_in_code import stream


def commit(folder: Path, backbone_folder: Path, count: int) -> None:
    """Learn one task, and commit copies of its bank."""
    if not folder.exists():
        learn(stream(backbone_folder, TASKS[:1], training=QUICK), folder)
    fill(folder, count)


def main(folder: str, backbone: str, count: str, role: str = "verify") -> None:
    """Commit in another process, then verify in this one and print what it took."""
    if role == "commit":
        commit(Path(folder), Path(backbone), int(count))
        return
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.store.many", folder, backbone, count, "commit"], check=True
    )
    committed = time.perf_counter() - begin
    run = Run(folder)
    run.verify("one")  # whatever is loaded once
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    checks = run.verify()
    seconds = time.perf_counter() - begin
    assert len(checks) == int(count)
    assert all(check.ok for check in checks)
    begin = time.perf_counter()
    tasks = Store(Path(folder)).tasks
    listed = time.perf_counter() - begin
    again = run.store.tasks == tasks
    assert again
    begin = time.perf_counter()
    assert run.store.tasks == tasks
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {
        "seconds": seconds,
        "committed": committed,
        "listed": listed,
        "listed again": time.perf_counter() - begin,
        "before": before * 1024,
        "peak": peak * 1024,
        "manifests": len(run.store._manifests),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
