"""Trials that are not in the ledger yet, run by a few processes at once."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
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
"""Where a trial of each method is run."""


@dataclass(frozen=True)
class Place:
    """Where trials find what they need."""

    data: Path
    backbones: dict[str, str] = field(default_factory=dict)
    """Folders of those backbones that do not lie under the name that trials have."""


class Workers:
    """A few processes, each with its share of the threads.

    Args:
        pool: the processes.
        jobs: how many there are.
        deadline: no trial is begun after this time, by `time.monotonic`; None for no such time.
    """

    def __init__(self, pool: ProcessPoolExecutor, jobs: int, deadline: float | None = None) -> None:
        self._pool, self._jobs, self._deadline = pool, jobs, deadline

    @property
    def late(self) -> bool:
        """Whether no trial is begun any more."""
        return self._deadline is not None and time.monotonic() > self._deadline

    def run(self, trials: Sequence[Trial], place: Place, done: Callable[[Trial, Outcome], None]) -> bool:
        """Run trials, and tell of each as soon as it is done; return whether all of them were.

        Raises:
            Exception: what went wrong in a trial, if it is not something that a trial may end with.
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
    """Start worker processes; they end with the context.

    Args:
        jobs: how many.
        minutes: after which no further trial is begun.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    context = multiprocessing.get_context("spawn")
    threads = max(1, torch.get_num_threads() // jobs)
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(threads, os.getpid())) as pool:
        yield Workers(pool, jobs, deadline)


def _begin(threads: int, parent: int) -> None:
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    # Of Lightning and datasets, on every trial anew: they say nothing about the result.
    warnings.simplefilter("ignore")


def _end_with(parent: int) -> None:
    """End this process with the one that started it: killed, it cannot stop a trial that nobody will take any more."""
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
