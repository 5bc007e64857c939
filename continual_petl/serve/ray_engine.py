"""Predicts an endpoint's rows in replicas on Ray Serve. Each replica has its own backbone and banks; Ray distributes
requests and forms the batches. HTTP, tokens and limits stay in this process. Needs the extra ``serve-ray``.

``serve.multiplexed`` is not used, since it keeps a separate model for each model id, whereas rows of all tasks share batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from continual_petl.engine.parallel.ray_workers import start_ray
from continual_petl.errors import InputError
from continual_petl.predictor.records import Record
from continual_petl.serve.batch_queue import WorkerThread
from continual_petl.serve.catalog import Catalog
from continual_petl.serve.local_engine import Engine
from continual_petl.serve.problems import Problem
from continual_petl.serve.request_rows import Asked
from continual_petl.serve.served_run import Outcomes, ServedRun
from continual_petl.serve.settings import ServeSettings

_NAME = "continual-petl"


class RayEngine(Engine):
    """The engine on Ray Serve. It joins the cluster that RAY_ADDRESS names, or starts one on this machine.

    Args:
        folder: the run folder, at the same path on every node.
        settings: how the run is served.
    """

    def __init__(self, folder: str | Path, settings: ServeSettings) -> None:
        super().__init__(folder, settings)
        self._handle: Any = None
        self._num_waiting = 0

    @property
    def num_waiting(self) -> dict[str, int]:
        """Number of rows that are waiting or being computed, in all replicas."""
        return {"ray": self._num_waiting}

    def load(self) -> None:
        """Start the replicas, unless they are already running; see `Engine.load`."""
        if self._handle is not None:
            return
        try:
            import ray
            from ray import serve
        except ImportError as error:
            raise InputError(
                f"engine: Ray Serve is not installed ({error}); install the extra: pip install 'continual-petl[serve-ray]'"
            ) from error
        if not ray.is_initialized():
            start_ray(ray)
        settings = self._settings
        serve.start(proxy_location="Disabled")
        deployment: Any = serve.deployment(
            num_replicas=settings.replicas,
            max_ongoing_requests=settings.batch_rows,
            max_queued_requests=settings.max_waiting,
            graceful_shutdown_timeout_s=settings.timeout_s,
        )(_replica(settings))
        self._handle = serve.run(deployment.bind(str(self._folder), settings), name=_NAME, route_prefix=None)

    async def stop(self) -> None:
        """Stop the replicas after they have answered."""
        from ray import serve

        await asyncio.to_thread(serve.delete, _NAME)

    async def answer(self, asked: Asked, catalog: Catalog) -> list[Record]:
        """Return a record for each row of a request; see `Engine.answer`."""
        if asked.put is not None:
            message = "stream: texts are not streamed from replicas on Ray Serve: send the request without it"
            raise Problem(422, "no_stream", message)
        from ray.serve.exceptions import BackPressureError

        size, indices = self._settings.batch_rows, range(asked.num_rows)
        parts = [asked.part(indices[start : start + size]) for start in indices[::size]]
        self._num_waiting += asked.num_rows
        try:
            outcomes = await asyncio.gather(*(self._handle.answer.remote(part) for part in parts))
        except BackPressureError as error:
            message = f"more than {self._settings.max_waiting:,} requests are waiting: try again later"
            raise Problem(429, "busy", message, retry_after=1) from error
        finally:
            self._num_waiting -= asked.num_rows
        records: list[Record] = []
        for outcome in outcomes:
            if isinstance(outcome, Problem):
                raise outcome
            records += outcome
        self._seen("ray", asked.num_rows)
        return records


def _replica(settings: ServeSettings) -> type:
    """Return the class of a replica; its batch settings have to be known when the class is created."""
    from ray import serve

    class Replica:
        def __init__(self, folder: str, settings: ServeSettings) -> None:
            self._run = ServedRun(folder, settings, generates=True)
            self._run.load()
            self._thread = WorkerThread("replica")

        @serve.batch(
            max_batch_size=settings.batch_rows,
            batch_wait_timeout_s=settings.window_ms / 1000,
            batch_size_fn=lambda jobs: sum(job.num_rows for job in jobs),
        )
        async def answer(self, jobs: Sequence[Asked]) -> list[Outcomes | Problem]:
            return await self._thread.call(self._run.answer, jobs)

    return Replica
