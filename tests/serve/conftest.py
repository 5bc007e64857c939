"""A run with tasks of several kinds, and endpoints for it that tests call without a network."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from continual_petl import Run
from continual_petl.serve import ServeSettings, make_app
from tests.learned import LearnedRuns
from tests.serve.declared import CheckedClient
from tests.small import small
from tests.streams_in_code import stream, task, task_of_kind

Open = Callable[..., TestClient]
TASKS = [
    task("first", num_rows=24),
    task("second", num_rows=24, bank=small("lora")),
    task("pairs", num_rows=24, pairs=True),
    task_of_kind("token-classification", "tags"),
    task_of_kind("multilabel", "many"),
]
TRAINING = {"epochs": 1, "batch_size": 8, "learning_rate": 0.02, "precision": "fp32"}


def until(check: Callable[[], bool]) -> None:
    """Wait until a check holds, since the endpoint rereads the folder at intervals; the limit only stops a hanging test."""
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="session")
def learned(backbone_folder: Callable[..., Path], learned_runs: LearnedRuns) -> Path:
    """Return a run that no test changes."""
    return learned_runs(stream(backbone_folder(), TASKS, training=TRAINING))


@pytest.fixture(scope="session")
def run(learned: Path) -> Run:
    """Return the same run, opened."""
    return Run(learned)


@pytest.fixture
def own(learned: Path, tmp_path: Path) -> Path:
    """Return a copy of the run for a test that changes it."""
    return Path(shutil.copytree(learned, tmp_path / "run"))


@pytest.fixture
def opened() -> Iterator[Open]:
    """Return a function that opens an endpoint for a run; all endpoints are closed after the test."""
    clients: list[TestClient] = []

    def open_(folder: Path, **settings: Any) -> TestClient:
        app = make_app(folder, ServeSettings(watch_s=0.05, **settings))
        client = CheckedClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
        client.__enter__()
        clients.append(client)
        return client

    yield open_
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture(scope="session")
def client(learned: Path) -> Iterator[TestClient]:
    """Return an endpoint with the default settings, shared by tests that change nothing."""
    with CheckedClient(
        make_app(learned, ServeSettings()), base_url="http://127.0.0.1", raise_server_exceptions=False
    ) as found:
        yield found
