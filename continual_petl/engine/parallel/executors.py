"""Choose the processes that train: this process, workers that each take a task, or several processes that share one task."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Literal, get_args

import torch

from continual_petl.engine.parallel.ddp import LocalRanks
from continual_petl.engine.parallel.processes import Processes, is_being_started
from continual_petl.engine.parallel.ray_workers import RayWorkers, check_ray
from continual_petl.engine.parallel.scheduler import Workers
from continual_petl.engine.parallel.worker import RunSetup, setup_of
from continual_petl.engine.session import Session
from continual_petl.engine.task_run import Ranks
from continual_petl.engine.trainers import num_processes
from continual_petl.errors import InputError

Executor = Literal["processes", "ray"]


class Pool:
    """The user's settings for learning many tasks at once.

    Args:
        jobs: number of tasks to learn at once; None means the executor's default.
        executor: where the tasks are learned.

    Raises:
        InputError: if either is not allowed, or Ray is requested but not installed.
    """

    def __init__(self, jobs: int | None, executor: str) -> None:
        if jobs is not None and jobs < 1:
            raise InputError(f"jobs: got {jobs}; the number of tasks to learn at once must be at least 1.")
        if executor not in get_args(Executor):
            raise InputError(f"executor: got {executor!r}; allowed: {', '.join(get_args(Executor))}.")
        max_jobs = max(2, os.cpu_count() or 1)
        if executor == "processes" and (jobs or 1) > max_jobs:
            raise InputError(
                f"jobs: got {jobs}, and each job is a process with its own backbone, but there are {os.cpu_count()} cores: "
                f"use at most {max_jobs}, or spread the tasks over several machines with the executor ray."
            )
        if executor == "ray":
            check_ray()
        self._jobs, self._executor = jobs, executor
        if self.is_elsewhere and is_being_started():
            raise InputError(
                "jobs: a worker imports the script that started it, and would start learning again: put learn(...) "
                'under `if __name__ == "__main__":`.'
            )

    @property
    def is_elsewhere(self) -> bool:
        """Whether tasks are learned in processes other than this one."""
        return self._executor == "ray" or (self._jobs or 1) > 1

    def notices(self) -> tuple[str, ...]:
        """Return warnings to show before the run begins."""
        jobs, threads, cores = self._jobs or 1, torch.get_num_threads(), os.cpu_count() or 1
        if self._executor != "processes" or jobs == 1 or jobs * threads <= cores:
            return ()
        return (
            f"{jobs} tasks at once with {threads} threads each compete for {cores} cores. Set OMP_NUM_THREADS="
            f"{max(1, cores // jobs)}; it is not changed automatically, because the last bits of a bank can depend on it.",
        )

    def check(self, session: Session) -> None:
        """Raise `InputError` if several tasks at once are requested, and each task itself needs several processes."""
        world_size = num_processes(session.spec) if self.is_elsewhere else 1
        if world_size > 1:
            raise InputError(
                f"jobs: several tasks at once, and {world_size} processes for each of them (trainer: devices): a run "
                "supports only one of the two. Write trainer: {devices: 1}, or leave out jobs and executor."
            )

    def opened(self, session: Session, max_jobs: int) -> Workers:
        """Return the workers, at most one per task.

        Raises:
            InputError: if each task itself needs several processes, or an object given in Python cannot be pickled.
        """
        self.check(session)
        setup = _sendable(session)
        if self._executor == "ray":
            return RayWorkers(setup, self._jobs, max_jobs)
        return Processes(setup, min(self._jobs or 1, max(max_jobs, 1)))


@contextmanager
def sharing(session: Session) -> Iterator[Ranks | None]:
    """Yield the processes that share the fit of each task, or None if one process is enough."""
    world_size = num_processes(session.spec)
    if world_size == 1:
        yield None
        return
    ranks = LocalRanks(_sendable(session), world_size)
    try:
        yield ranks
    finally:
        ranks.close()


def _sendable(session: Session) -> RunSetup:
    """Return what workers need to know, or raise `InputError` naming the object that cannot be sent to them."""
    setup = setup_of(session)
    given = [(f"callback {type(callback).__name__}", callback) for callback in setup.callbacks]
    given += [(f"trainer.{key}", value) for key, value in setup.spec.trainer.items()]
    for what, value in [*given, ("the stream", setup.spec)]:
        try:
            ForkingPickler.dumps(value)
        except Exception as error:  # the methods by which the user's objects are pickled can raise anything
            raise InputError(
                f"{what}: it cannot be sent to the worker processes ({type(error).__name__}: {error}). Give one that "
                "holds no open file, lock or lambda, or learn in one process: without jobs, with devices: 1."
            ) from error
    return setup
