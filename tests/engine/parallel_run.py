"""A small run of parallel tasks, and callbacks that kill a worker or wait for a second one."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import pytest

from continual_petl import Interrupted, Run, learn
from continual_petl.streams.stream import TaskStream
from tests.streams_in_code import regression_task, task

TRAINING = {"batch_size": 5, "learning_rate": 0.05, "checkpoint_every": 2, "head_dropout": 0.3}
TASKS: list[dict[str, Any]] = [
    task("one", num_rows=24),
    regression_task("two", num_rows=24, bank="bitfit"),
    task("three", num_rows=24, bank={"start_from": "one"}, training={"select": "last"}),
    task("four", num_rows=24, pairs=True, bank="lora"),
]


def files_of(run: Path) -> dict[str, bytes]:
    """Return the bytes of all files of the banks and of backbone.json, and ledger.jsonl without times and seals."""
    found = {
        str(path.relative_to(run)): path.read_bytes() for path in sorted((run / "banks").rglob("*")) if path.is_file()
    }
    assert sum(name.endswith("/history.json") for name in found) == len(list((run / "banks").iterdir()))
    lines = [json.loads(line)["line"] for line in (run / "ledger.jsonl").read_text().splitlines()]
    kept = [{key: value for key, value in line.items() if key not in ("seconds", "seal")} for line in lines]
    return found | {"results": json.dumps(kept).encode(), "backbone": (run / "backbone.json").read_bytes()}


class DieOnce(L.Callback):
    """Kill the worker of one task in the middle of its fit, once."""

    def __init__(self, marker: Path, task: str) -> None:
        self.marker, self.task = str(marker), task

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *args: Any) -> None:
        struck = pl_module.plan.name == self.task and trainer.global_step == 7
        if struck and not os.path.exists(self.marker):
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Tells(L.Callback):
    """At every step of two tasks, create a file named after task and process, wait until two files exist, and sleep."""

    def __init__(self, folder: Path, tasks: tuple[str, str]) -> None:
        self.folder, self.tasks = str(folder), tasks

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *args: Any) -> None:
        if pl_module.plan.name not in self.tasks:
            return
        Path(self.folder, f"{pl_module.plan.name}-{os.getpid()}").touch()
        until = time.monotonic() + 400
        while len(os.listdir(self.folder)) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.5)


def when_two_have_begun(folder: Path, act: Callable[[], None]) -> threading.Thread:
    """Call ``act`` from a thread as soon as two tasks are being learned."""

    def watch() -> None:
        until = time.monotonic() + 400
        while len(list(folder.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        act()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def stop_half_way(
    tasks: TaskStream, folder: Path, during: tuple[str, str], callbacks: Sequence[L.Callback] = (), **more: Any
) -> None:
    """Learn, and send this process a SIGTERM when two tasks are being learned, before they are committed."""
    (folder / "begun").mkdir(parents=True)
    thread = when_two_have_begun(folder / "begun", lambda: os.kill(os.getpid(), signal.SIGTERM))
    # On a slow machine, this process may still be committing an earlier task when the signal arrives.
    where = "their progress is saved|the task is committed|was committed|before task"
    with pytest.raises(Interrupted, match=where) as told:
        learn(tasks, folder / "run", callbacks=[Tells(folder / "begun", during), *callbacks], **more)
    thread.join()
    assert told.value.signal_number == signal.SIGTERM
    begun = {path.name.split("-")[0] for path in (folder / "begun").iterdir()}
    assert begun == set(during)
    assert all((folder / "run" / ".progress" / name / "last.ckpt").exists() for name in begun)
    assert not begun & set(Run(folder / "run").store.tasks)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
