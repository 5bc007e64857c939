"""Workers on a Ray cluster: each task is a remote task of Ray's, begun again by Ray where its process or machine is lost.

Ray is an extra (``continual-petl[ray]``) and imported when it is asked for. A cluster is found as Ray finds it: the one that
this process is connected to, the one that ``RAY_ADDRESS`` names, else a local one for the length of the course.
"""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Protocol

from continual_petl.course.processes import WorkerDied
from continual_petl.course.worker import Brief, Report, Worker
from continual_petl.errors import InputError
from continual_petl.streams.schema.stream_spec import StreamSpec

_MOST_RETRIES = 2
_worker: Worker | None = None
"""Of a worker process."""
_course: str | None = None
"""Which course it is for."""


def check_ray() -> None:
    """Raise `InputError` if Ray is not installed."""
    if find_spec("ray") is None:
        raise InputError(
            "executor: got 'ray', but Ray is not installed here: pip install 'continual-petl[ray]'. Without it, --jobs N "
            "learns many tasks at once in processes of this machine."
        )


class _Brief(Protocol):
    """What has to be known of a course to find room for it."""

    @property
    def num_threads(self) -> int: ...

    @property
    def spec(self) -> StreamSpec: ...


class OnRay:
    """Learns tasks on a Ray cluster; satisfies `Elsewhere`.

    Args:
        brief: the course.
        jobs: number of tasks at once; None: as many as the cluster has CPUs for, at the number of threads of this process.
        most: number of tasks there are.
        act: what is done about a task there, with the brief and a name of the course that no other one has.
    """

    retries = 0  # Ray's own are enough

    def __init__(
        self,
        brief: _Brief,
        jobs: int | None,
        most: int,
        *,
        act: Callable[[Any, str, str], Report] | None = None,
    ) -> None:
        ray = self._ray = importlib.import_module("ray")
        self._ours = not ray.is_initialized()
        if self._ours:
            # Whoever wants to report to Ray's makers can say so.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init(include_dashboard=False, configure_logging=False)
        room = int(ray.cluster_resources().get("CPU", 1)) // brief.num_threads
        self.jobs = max(1, min(most, room if jobs is None else jobs))
        self.stopping = False
        self._brief = ray.put(brief)
        self._course = f"{os.getpid()} {id(self)}"
        gpus = 1 if ray.cluster_resources().get("GPU") and brief.spec.trainer.get("accelerator", "auto") != "cpu" else 0
        remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=_MOST_RETRIES, retry_exceptions=False)
        self._learn = remote(act or learn_on_ray)
        self._running: dict[str, Any] = {}

    def learn(self, task: str) -> Report:
        """Learn a task somewhere on the cluster."""
        if self.stopping:
            return Report(task=task, state="stopped")
        reference = self._running[task] = self._learn.remote(self._brief, self._course, task)
        if self.stopping:
            self._ray.cancel(reference)  # it was being started when the others were told
        try:
            report: Report = self._ray.get(reference)
        except self._ray.exceptions.TaskCancelledError:
            return Report(task=task, state="stopped")
        except self._ray.exceptions.RayTaskError as error:
            return Report(task=task, state="failed", error="RuntimeError", message=f"task {task!r}: {error}")
        except self._ray.exceptions.RayError as error:
            raise WorkerDied from error
        finally:
            del self._running[task]
        return report

    def stop(self) -> None:
        """Ask all that are learning to save and end."""
        self._cancel(force=False)

    def kill(self) -> None:
        """End all at once."""
        self._cancel(force=True)

    def _cancel(self, *, force: bool) -> None:
        self.stopping = True
        for reference in list(self._running.values()):
            with suppress(self._ray.exceptions.RayError):
                self._ray.cancel(reference, force=force)

    def close(self) -> None:
        """Leave the cluster, if it was for this course."""
        if self._ours:
            self._ray.shutdown()


def learn_on_ray(brief: Brief, course: str, task: str) -> Report:
    """Learn a task in this process of Ray's; the backbone stays loaded while it is the same course."""
    global _worker, _course
    if _worker is None or course != _course:
        try:
            # Ray asks a task to end as Ctrl-C does.
            _worker, _course = Worker(brief, (signal.SIGINT, signal.SIGTERM)), course
        except InputError as error:
            return Report(task=task, state="failed", error="InputError", message=str(error))
    return _worker.learn(task)
