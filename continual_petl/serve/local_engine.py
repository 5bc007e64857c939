"""Predicts an endpoint's rows in this process: one queue for labels, and another for texts if any task generates them.

Each queue has its own copy of the backbone, because banks are attached to it while they predict.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from continual_petl.heads.predictions import Prediction
from continual_petl.predictor.records import Record, route_of
from continual_petl.serve.batch_queue import BatchQueue
from continual_petl.serve.catalog import Catalog
from continual_petl.serve.request_rows import Asked
from continual_petl.serve.served_run import Outcomes, ServedRun
from continual_petl.serve.settings import ServeSettings

Seen = Callable[[str, int], None]


class Engine(ABC):
    """Computes predictions for the rows of requests.

    Args:
        folder: the run folder.
        settings: how the run is served.
    """

    def __init__(self, folder: str | Path, settings: ServeSettings) -> None:
        self._folder, self._settings = Path(folder).absolute(), settings
        self._seen: Seen = lambda queue, rows: None

    @property
    @abstractmethod
    def num_waiting(self) -> dict[str, int]:
        """Number of waiting rows, by queue."""

    @property
    def num_held(self) -> tuple[int, int]:
        """Number of banks in the memory of this process, and their size in bytes."""
        return 0, 0

    @abstractmethod
    def load(self) -> None:
        """Load what is needed to predict, unless it is already loaded.

        Raises:
            InputError: if the backbone cannot be loaded.
            StoreError: if the run is damaged, or was learned on another backbone.
        """

    async def start(self, seen: Seen) -> None:
        """Load what is needed to predict, and start answering requests.

        Args:
            seen: called for each batch, with the name of its queue and its number of rows.
        """
        self._seen = seen
        await asyncio.to_thread(self.load)

    @abstractmethod
    async def answer(self, asked: Asked, catalog: Catalog) -> list[Record]:
        """Return a record for each row of a request.

        Raises:
            Problem: if the request gets no predictions; its message explains why.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Answer all accepted requests, then stop."""


class LocalEngine(Engine):
    """The engine that predicts in this process; see `Engine`."""

    def __init__(self, folder: str | Path, settings: ServeSettings) -> None:
        super().__init__(folder, settings)
        self._queues: dict[str, BatchQueue[Asked, Outcomes]] = {}
        self._runs: dict[str, ServedRun] = {}

    @property
    def num_waiting(self) -> dict[str, int]:
        """Number of waiting rows, by queue."""
        return {name: queue.num_waiting for name, queue in self._queues.items()}

    @property
    def num_held(self) -> tuple[int, int]:
        """Number of banks in memory, and their size in bytes."""
        held = [run.num_held for run in self._runs.values()]
        return sum(banks for banks, _ in held), sum(size for _, size in held)

    def load(self) -> None:
        """Load the backbone; see `Engine.load`."""
        if "labels" not in self._runs:
            self._runs["labels"] = ServedRun(self._folder, self._settings, generates=False)
            self._runs["labels"].load()

    async def start(self, seen: Seen) -> None:
        """Load the backbone and start the queue of labels, so that it is in the metrics from the beginning."""
        await super().start(seen)
        self._queue("labels")

    async def stop(self) -> None:
        """Answer all accepted requests, then stop."""
        await asyncio.gather(*(queue.stop() for queue in self._queues.values()))

    def _queue(self, name: str) -> BatchQueue[Asked, Outcomes]:
        if name not in self._queues:
            if name not in self._runs:
                self._runs[name] = ServedRun(self._folder, self._settings, generates=True)
            limits = {key: getattr(self._settings, key) for key in ("batch_rows", "window_ms", "max_waiting")}
            queue = self._queues[name] = BatchQueue[Asked, Outcomes](
                name, self._runs[name].answer, seen=lambda rows: self._seen(name, rows), **limits
            )
            queue.start()
        return self._queues[name]

    async def answer(self, asked: Asked, catalog: Catalog) -> list[Record]:
        """Return a record for each row of a request; see `Engine.answer`."""
        queues: dict[str, list[int]] = {}
        for index, task in enumerate(asked.tasks):
            texts = task is not None and catalog.certificate(task).generation is not None
            if task is None and asked.candidates:  # any task may be among the candidates
                texts = any(catalog.certificate(name).generation is not None for name in catalog.store.tasks)
            queues.setdefault("texts" if texts else "labels", []).append(index)
        parts = [asyncio.ensure_future(self._in_queue(name, asked, own)) for name, own in queues.items()]
        try:
            records = dict(chain.from_iterable(found.items() for found in await asyncio.gather(*parts)))
        finally:
            for part in parts:
                part.cancel()  # waiting parts leave the queue
        return [records[index] for index in range(asked.num_rows)]

    async def _in_queue(self, name: str, asked: Asked, own: Sequence[int]) -> dict[int, Record]:
        """Return the records of some rows by their indices, after they have waited in a queue."""
        size = self._settings.batch_rows
        parts = [asked.part(own[start : start + size]) for start in range(0, len(own), size)]
        outcomes = dict(zip(own, chain.from_iterable(await self._queue(name).answer(parts)), strict=True))
        found = {index: outcome for index, outcome in outcomes.items() if isinstance(outcome, Prediction)}
        records = {index: outcome for index, outcome in outcomes.items() if not isinstance(outcome, Prediction)}
        if found:
            tasks = [found[index].task if index in found else None for index in range(asked.num_rows)]
            texts = await self._in_queue("texts", replace(asked, tasks=tasks), list(found))
            for index, prediction in found.items():
                records[index] = route_of(prediction) | texts[index]
        return records
