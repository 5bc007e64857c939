"""Which processes learn: this one, workers that take a task each, or several that share one task."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Literal, get_args

import lightning as L
import torch

from continual_petl.course.at_once import Elsewhere
from continual_petl.course.learned import Ranks
from continual_petl.course.on_ray import OnRay, check_ray
from continual_petl.course.processes import Processes, is_being_started
from continual_petl.course.ranks import LocalRanks
from continual_petl.course.session import Session
from continual_petl.course.trainers import num_processes
from continual_petl.course.worker import Brief, brief_of
from continual_petl.errors import InputError

Executor = Literal["processes", "ray"]


class Pool:
    """What a user says of many tasks at once.

    Args:
        jobs: number of tasks at once; None leaves it open.
        executor: what learns them.

    Raises:
        InputError: if either is out of range, or Ray is not installed.
    """

    def __init__(self, jobs: int | None, executor: str) -> None:
        if jobs is not None and jobs < 1:
            raise InputError(f"jobs: got {jobs}; the number of tasks that are learned at once is at least 1.")
        if executor not in get_args(Executor):
            raise InputError(f"executor: got {executor!r}; allowed are {', '.join(get_args(Executor))}.")
        most = max(2, os.cpu_count() or 1)
        if executor == "processes" and (jobs or 1) > most:
            raise InputError(
                f"jobs: got {jobs}, and each is a process with a backbone of its own, but here are {os.cpu_count()} cores "
                f"for them: give at most {most}, or learn on more machines: executor ray."
            )
        if executor == "ray":
            check_ray()
        self._jobs, self._executor = jobs, executor
        if self.is_elsewhere and is_being_started():
            raise InputError(
                "jobs: a worker imports the script that started it, and this one would learn again there: write learn(...) "
                'under `if __name__ == "__main__":`.'
            )

    @property
    def is_elsewhere(self) -> bool:
        """Whether tasks are learned in other processes than this one."""
        return self._executor == "ray" or (self._jobs or 1) > 1

    def notices(self) -> tuple[str, ...]:
        """Return what the user should know before it begins."""
        jobs, threads, cores = self._jobs or 1, torch.get_num_threads(), os.cpu_count() or 1
        if self._executor != "processes" or jobs == 1 or jobs * threads <= cores:
            return ()
        return (
            f"{jobs} tasks at once with {threads} threads each get in each other's way on {cores} cores. Set OMP_NUM_THREADS="
            f"{max(1, cores // jobs)}; it is not changed by itself, because the last bits of a bank can depend on it.",
        )

    def opened(self, session: Session, callbacks: Sequence[L.Callback], most: int) -> Elsewhere:
        """Return the workers, at most so many.

        Raises:
            InputError: if each task asks for several processes itself, or something given in Python cannot be sent.
        """
        world_size = _world_size(session)
        if world_size > 1:
            raise InputError(
                f"jobs: many tasks at once, and {world_size} processes for each of them (trainer: devices): a course does "
                "one or the other. Write trainer: {devices: 1}, or leave out jobs and executor."
            )
        brief = _sendable(session, callbacks)
        if self._executor == "ray":
            return OnRay(brief, self._jobs, most)
        return Processes(brief, min(self._jobs or 1, max(most, 1)))


@contextmanager
def sharing(session: Session, callbacks: Sequence[L.Callback]) -> Iterator[Ranks | None]:
    """Give the processes that share the fit of each task, or None where one process is enough."""
    world_size = _world_size(session)
    if world_size == 1:
        yield None
        return
    ranks = LocalRanks(_sendable(session, callbacks), world_size)
    try:
        yield ranks
    finally:
        ranks.close()


def _world_size(session: Session) -> int:
    return num_processes(session.spec)


def _sendable(session: Session, callbacks: Sequence[L.Callback]) -> Brief:
    """Return what workers have to know, or say what of it cannot be sent to another process."""
    brief = brief_of(session, tuple(callbacks))
    given = [(f"callback {type(each).__name__}", each) for each in brief.callbacks]
    given += [(f"trainer.{key}", value) for key, value in brief.spec.trainer.items()]
    for what, value in [*given, ("the stream", brief.spec)]:
        try:
            ForkingPickler.dumps(value)
        except Exception as error:
            raise InputError(
                f"{what}: it cannot be sent to the processes that learn ({type(error).__name__}: {error}). Give one that "
                "holds no open file, lock or function without a name, or learn in one process: without jobs, with devices: 1."
            ) from error
    return brief
