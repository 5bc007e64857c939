"""Replicas on Ray Serve answer as this process does."""

from __future__ import annotations

import asyncio
import pickle
import signal
import threading
import time
import uuid
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from continual_petl import Run
from continual_petl.serve import Client, ServeSettings, make_app
from continual_petl.serve.catalog import Catalog
from continual_petl.serve.problems import Problem
from continual_petl.serve.ray_engine import RayEngine
from continual_petl.serve.request_rows import Asked
from tests.ray_cluster import UNTIDY, needs_ray, two_workers
from tests.serve.declared import CheckedClient
from tests.serve.test_server import served


def test_streaming_is_refused(learned: Path) -> None:
    settings = ServeSettings(engine="ray")
    one = Asked(["w1"], ["first"], None, [1], put=print)
    with pytest.raises(Problem, match="stream: texts are not streamed from replicas on Ray Serve"):
        asyncio.run(RayEngine(learned, settings).answer(one, Catalog(learned)))


def test_application_uses_the_engine_that_its_settings_name(learned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[RayEngine] = []
    monkeypatch.setattr(RayEngine, "load", lambda engine: loaded.append(engine))
    monkeypatch.setattr(RayEngine, "stop", AsyncMock())
    with CheckedClient(make_app(learned, ServeSettings(engine="ray")), base_url="http://127.0.0.1") as client:
        assert 'continual_petl_waiting_rows{queue="ray"} 0.0' in client.get("/metrics").text
    assert len(loaded) == 1


def test_problem_that_a_replica_sends_keeps_its_parts() -> None:
    problem = Problem(413, "too_large", "a reason", row=3, retry_after=2, headers={"allow": "GET"})
    sent = pickle.loads(pickle.dumps(problem))
    assert isinstance(sent, Problem)
    assert (sent.status, sent.headers(), sent.to_json()) == (problem.status, problem.headers(), problem.to_json())
    assert str(sent) == problem.message


@pytest.mark.slow
@needs_ray
@pytest.mark.filterwarnings(*UNTIDY, "ignore::DeprecationWarning")
def test_replicas_answer_as_this_process_does(learned: Path, run: Run) -> None:
    texts = [f"w{10 + number} w{20 + number} w1" for number in range(20)]
    settings = ServeSettings(engine="ray", batch_rows=8)
    with two_workers():
        app = make_app(learned, settings, engine=RayEngine(learned, settings))
        with CheckedClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
            found = client.post("/v1/predict", json={"inputs": texts, "task": "first"}).json()["predictions"]
            assert [record["answer"] for record in found] == [answer.value for answer in run.predict(texts, "first")]
            bad = client.post("/v1/predict", json={"inputs": [["w"] * 200], "task": "tags"})
            assert (bad.status_code, bad.json()["error"]["code"]) == (409, "bad_row")
            assert 'continual_petl_rows_total{queue="ray"} 20.0' in client.get("/metrics").text


def _processes_with(mark: str) -> list[str]:
    """Return the command lines of the processes whose environment contains a text."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:  # the process has ended
            continue
    return found


@pytest.mark.slow
@needs_ray
def test_sigterm_answers_accepted_requests_and_leaves_no_process(
    learned: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setenv("CONTINUAL_PETL_TEST", mark)  # Ray's processes inherit it
    monkeypatch.setenv("RAY_worker_niceness", "0")
    texts = [f"w{one} w{two} w1" for one in range(10, 20) for two in range(20, 60)]
    wanted = [answer.value for answer in run.predict(texts, "first")]
    with (
        served(learned, "--engine", "ray", "--window-ms", "500", fresh=True) as (process, address),
        Client(address) as client,
    ):
        assert client.predict(texts[0], "first")["answer"] == wanted[0]
        assert any("raylet" in line for line in _processes_with(mark))
        found: list[str] = []
        asking = threading.Thread(
            target=lambda: found.extend(record["answer"] for record in client.predict(texts, "first"))
        )
        asking.start()
        with Client(address) as watching:
            while asking.is_alive() and 'waiting_rows{queue="ray"} 0.0' in watching.get("/metrics").text:
                pass
        process.send_signal(signal.SIGTERM)
        asking.join(60)
        assert found == wanted
        assert process.wait(60) == 0
    deadline = time.monotonic() + 60
    while left := _processes_with(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
