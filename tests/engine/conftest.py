"""Worker processes that start faster than a user's."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import BaseContext

import pytest


@pytest.fixture
def imported_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first worker spawned, as all are, and the others forked from a process that imported what takes seconds."""
    spawned: list[BaseContext] = [multiprocessing.get_context("spawn")]
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["continual_petl.engine.parallel.worker", "transformers", "pytest"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: spawned.pop() if spawned else server)
