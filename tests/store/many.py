"""``python -m tests.store.many RUN BACKBONE COUNT ...``: commit untrained banks until there are COUNT, then verify them.

Commits and verifications run in processes of their own, so that the peak memory is measured for the verification alone. All
of them are forked from a process that has only imported the modules.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from continual_petl import Run, learn
from continual_petl.store.store import Store
from experiments.benchmarks.growth import fill
from tests.store.tampering import QUICK, TASKS
from tests.streams_in_code import stream


def commit(folder: Path, backbone_folder: Path, count: int) -> None:
    """Learn one task, then commit untrained banks until there are ``count``."""
    if not folder.exists():
        learn(stream(backbone_folder, TASKS[:1], training=QUICK), folder)
    fill(folder, count)


def in_a_process(act: Callable[[], None]) -> None:
    """Run a function in a separate process; if its exit code is not 0, exit with it."""
    child = os.fork()
    if child == 0:
        code = 9
        try:
            act()
            sys.stdout.flush()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        sys.exit(code)


def verify(folder: Path, count: int, committed: float) -> None:
    """Verify all banks; print times and memory."""
    run = Run(folder)
    run.verify("one")  # warm-up: loads the backbone
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    checks = run.verify()
    seconds = time.perf_counter() - begin
    assert len(checks) == count
    assert all(check.ok for check in checks)
    begin = time.perf_counter()
    tasks = Store(folder).tasks
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
        "certificates": len(run.store._reader.certificates),
    }
    print(json.dumps(found))


def main(folder: str, backbone: str, *counts: str) -> None:
    """Commit and verify for each count in turn."""
    run = Path(folder)
    for count in map(int, counts):
        begin = time.perf_counter()
        in_a_process(partial(commit, run, Path(backbone), count))
        in_a_process(partial(verify, run, count, time.perf_counter() - begin))


if __name__ == "__main__":
    main(*sys.argv[1:])
