"""Processes that learn a small run and are killed from outside at random times; the phase is recorded."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from continual_petl import Run, learn
from continual_petl.engine import learn as learn_module
from continual_petl.engine.session import Session
from continual_petl.engine.task import finish_task, learn_task
from continual_petl.engine.task.checkpoint import BankCheckpoint
from continual_petl.learner import ContinualLearner
from continual_petl.store.files.lock import RunLock
from continual_petl.store.store import Store
from continual_petl.store.verify.certificate import check_task
from continual_petl.streams.stream import TaskStream
from tests.desk import bank_digests

PHASES: dict[str, tuple[Any, str]] = {
    "preflight": (learn_module, "preflight"),
    "lock": (RunLock, "__enter__"),
    "data": (Session, "prepare"),
    "learning": (learn_task, "_fit"),
    "validation": (ContinualLearner, "validation_step"),
    "best bank": (BankCheckpoint, "on_validation_end"),
    "checkpoint": (BankCheckpoint, "_save"),
    "evaluating": (learn_task, "outputs_of"),
    "commit": (learn_task, "commit_task"),
    "row": (finish_task, "measure_row"),
    "results": (Store, "append"),
    "verification": (finish_task, "pass_gate"),
}


class Kills:
    """Kills a run and restarts it in the same folder until it finishes, then starts over in a new folder.

    Args:
        tasks: the stream to learn.
        whole: the digests of the banks of an uninterrupted run.
        folder: the folder for the run folders.
        seconds: the longest time before a child is killed.
    """

    def __init__(self, tasks: TaskStream, whole: dict[str, str], folder: Path, seconds: float) -> None:
        self._tasks, self._whole, self._folder, self._seconds = tasks, whole, folder, seconds
        self._backbone = Session(tasks.spec, Store(folder)).models.backbone("fp32")
        self._phase = mmap.mmap(-1, 64)  # shared with the children
        self.phases: Counter[str] = Counter()
        self.num_finished = 0
        self.wrong: list[str] = []

    def make(self, count: int, seed: int) -> None:
        """Kill ``count`` times, then let the last run finish."""
        draw, run, first = random.Random(seed), self._folder / "0", True
        while sum(self.phases.values()) < count or not first:
            last = sum(self.phases.values()) >= count
            if self._live(run, None if last else draw.uniform(0, self._seconds)):
                self._check_finished(run)
                shutil.rmtree(run)
                self.num_finished, first = self.num_finished + 1, True
                run = self._folder / str(self.num_finished)
            else:
                self._check_whole(run)
                first = False

    def _live(self, run: Path, seconds: float | None) -> bool:
        """Learn in a child that is killed after ``seconds``; return whether it finished before that."""
        self._set("start")
        child = os.fork()
        if child == 0:
            self._learn(run)
        if seconds is not None:
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == -signal.SIGKILL:
            self.phases[bytes(self._phase[:]).rstrip(b"\0").decode()] += 1
            return False
        if code != 0:
            raise AssertionError((self._folder / "error").read_text())
        return True

    def _learn(self, run: Path) -> None:
        code = 9
        try:
            for phase, (where, name) in PHASES.items():
                setattr(where, name, self._in(phase, getattr(where, name)))
            learn(self._tasks, run)
            code = 0
        except BaseException:
            (self._folder / "error").write_text(traceback.format_exc())
        finally:
            os._exit(code)

    def _in(self, phase: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            before = bytes(self._phase[:])
            self._set(phase)
            try:
                return real(*args, **kwargs)
            finally:
                self._phase[:] = before

        return call

    def _set(self, phase: str) -> None:
        self._phase[:] = phase.encode().ljust(64, b"\0")

    def _check_whole(self, run: Path) -> None:
        """Check that all banks in the run are complete and give the certified answers."""
        store = Store(run)
        for task in store.tasks:
            if sorted(path.name for path in store.bank_folder(task).iterdir()) != [
                "bank.json",
                "bank.safetensors",
                "history.json",
                "probe.safetensors",
                "router.safetensors",
            ]:
                self.wrong.append(f"kill {sum(self.phases.values())}: incomplete bank of {task!r}")
            if store.certificate(task).digest != self._whole[task]:
                self.wrong.append(f"kill {sum(self.phases.values())}: different bank of {task!r}")
        if store.tasks:
            problems = [problem for task in store.tasks for problem in check_task(store, task, self._backbone).problems]
            self.wrong += [f"kill {sum(self.phases.values())}: {problem}" for problem in problems]

    def _check_finished(self, run: Path) -> None:
        after, where = Run(run), f"run {self.num_finished}: "
        forgot = len(self._whole) > 1 and after.results.forgetting != 0.0  # one task has nothing to forget
        if bank_digests(after) != self._whole:
            self.wrong.append(f"{where}different banks")
        if not all(check.ok for check in after.verify(data=True)) or forgot:
            self.wrong.append(f"{where}not verified")
        names = (str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
        left = [name for name in names if name.startswith((".progress", "banks/.")) or name.endswith(".new")]
        if left:
            self.wrong.append(f"{where}left behind {left}")
