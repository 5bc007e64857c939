"""Run the trials that are not in the ledger yet, in a few parallel processes."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from experiments.studies.trial import Method, Trial

Outcome = dict[str, Any]
HOMES: dict[Method, str] = {
    "learn": "studies.learning",
    "ablate": "houlsby2019.ablation",
    "sweep": "houlsby2019.sweep",
    "replay": "continual.one_model",
    "joint": "continual.one_model",
}
"""The module that runs the trials of each method."""


@dataclass(frozen=True)
class Place:
    """Folders with the data and backbones of trials."""

    data: Path
    backbones: dict[str, str] = field(default_factory=dict)
    """Folders of backbones by their names in trials, where the two differ."""


class Workers:
    """A few processes, each with a share of the threads.

    Args:
        pool: the processes.
        jobs: number of processes.
        deadline: time by `time.monotonic` after which no trial starts; None for no limit.
    """

    def __init__(self, pool: Executor, jobs: int, deadline: float | None = None) -> None:
        self._pool, self._jobs, self._deadline = pool, jobs, deadline

    @property
    def late(self) -> bool:
        """Whether the deadline has passed."""
        return self._deadline is not None and time.monotonic() > self._deadline

    def run(self, trials: Sequence[Trial], place: Place, done: Callable[[Trial, Outcome], None]) -> bool:
        """Run trials and report each as soon as it is done; return whether all were run.

        Raises:
            Exception: any error of a trial that does not count as the trial's result.
        """
        waiting, running = list(trials), dict[Future[Outcome], Trial]()
        while waiting or running:
            while waiting and len(running) < self._jobs and not self.late:
                trial = waiting.pop(0)
                running[self._pool.submit(work, trial, place)] = trial
            if not running:
                return False
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                done(running.pop(future), future.result())
        return True


@contextmanager
def started(jobs: int, minutes: float | None) -> Iterator[Workers]:
    """Start worker processes, which end with the context.

    Args:
        jobs: number of processes.
        minutes: no trial starts after this many minutes; None for no limit.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    context = multiprocessing.get_context("spawn")
    threads = max(1, torch.get_num_threads() // jobs)
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(threads, os.getpid())) as pool:
        yield Workers(pool, jobs, deadline)


def _begin(threads: int, parent: int) -> None:
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    # Lightning and datasets repeat their warnings in every trial; they are irrelevant to the results.
    warnings.simplefilter("ignore")


def _end_with(parent: int) -> None:
    """End this process when its parent dies, because a parent that was killed cannot stop its workers."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def work(trial: Trial, place: Place) -> Outcome:
    """Run one trial in this process."""
    begin = time.perf_counter()
    outcome: Outcome = import_module(f"experiments.{HOMES[trial.method]}").run_trial(
        trial, place.data, place.backbones.get(trial.backbone)
    )
    return outcome | {"wall": round(time.perf_counter() - begin, 2), "threads": torch.get_num_threads()}
