"""Workers on a Ray cluster: each task is a Ray remote task, which Ray retries if its process or machine is lost.

Ray is an extra (``continual-petl[ray]``) and imported only when requested. As usual with Ray, the cluster is
the one that this process is connected to, the one named by ``RAY_ADDRESS``, or else a local one for the duration of the run.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from continual_petl.engine.parallel.processes import WorkerDied
from continual_petl.engine.parallel.worker import Report
from continual_petl.engine.session import ProcessSettings
from continual_petl.errors import InputError

_MAX_RETRIES = 2
_work: Callable[[Any], Any] | None = None
"""What a worker process does with what it is given; None in any other process."""
_run: str | None = None
"""Unique name of the run that it works for."""


def check_ray() -> None:
    """Raise `InputError` if Ray is not installed."""
    if find_spec("ray") is None:
        raise InputError(
            "executor: got 'ray', but Ray is not installed here: pip install 'continual-petl[ray]'. Without it, --jobs N "
            "learns many tasks at once in processes on this machine."
        )


def start_ray(ray: Any) -> None:
    """Connect to a Ray cluster, and keep this process's handler for SIGTERM.

    ``ray.init`` installs its own, which ends the process with `SystemExit` whether or not the progress has been saved.

    Args:
        ray: the imported ``ray`` module.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(include_dashboard=False, configure_logging=False)
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


class RayWorkers:
    """Learns tasks on a Ray cluster; implements `Workers`.

    Args:
        setup: describes the run to the workers.
        jobs: number of tasks at once; None: as many as the cluster's CPUs allow, with as many threads each as this process.
        max_jobs: number of tasks to learn, which is an upper limit for ``jobs``.
    """

    retries = 0  # Ray itself retries

    def __init__(self, setup: ProcessSettings, jobs: int | None, max_jobs: int) -> None:
        ray = self._ray = importlib.import_module("ray")
        self._ours = not ray.is_initialized()
        if self._ours:
            # Users can still enable Ray's usage statistics.
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            start_ray(ray)
        room = int(ray.cluster_resources().get("CPU", 1)) // setup.num_threads
        self.jobs = max(1, min(max_jobs, room if jobs is None else jobs))
        self.stopping = False
        self._setup = ray.put(setup)
        self._run = f"{os.getpid()} {id(self)}"
        gpus = 1 if ray.cluster_resources().get("GPU") and setup.spec.trainer.get("accelerator", "auto") != "cpu" else 0
        remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=_MAX_RETRIES, retry_exceptions=False)
        self._learn = remote(work_on_ray)
        self._running: dict[str, Any] = {}

    def learn(self, task: str) -> Report:
        """Learn a task somewhere on the cluster."""
        if self.stopping:
            return Report(task=task, state="stopped")
        reference = self._running[task] = self._learn.remote(self._setup, self._run, task)
        if self.stopping:
            self._ray.cancel(reference)  # this task was still starting when the others were stopped
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
        """Ask all running workers to save and end."""
        self._cancel(force=False)

    def kill(self) -> None:
        """End all workers at once."""
        self._cancel(force=True)

    def _cancel(self, *, force: bool) -> None:
        self.stopping = True
        for reference in list(self._running.values()):
            with suppress(self._ray.exceptions.RayError):
                self._ray.cancel(reference, force=force)

    def close(self) -> None:
        """Disconnect from the cluster, if it was started for this run."""
        if self._ours:
            self._ray.shutdown()


def work_on_ray(setup: ProcessSettings, run: str, task: str) -> Report:
    """Work on a task in this Ray process; what is open stays open for further tasks of the same run."""
    global _work, _run
    if _work is None or run != _run:
        try:
            # Ray cancels a task by raising KeyboardInterrupt, like Ctrl-C.
            _work, _run = setup.opened((signal.SIGINT, signal.SIGTERM)), run
        except InputError as error:
            return Report(task=task, state="failed", error="InputError", message=str(error))
    report: Report = _work(task)
    return report
