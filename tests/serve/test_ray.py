"""Replicas on Ray Serve answer as this process does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from continual_petl import Run
from continual_petl.serve import ServeSettings, make_app
from continual_petl.serve.catalog import Catalog
from continual_petl.serve.problems import Problem
from continual_petl.serve.ray_engine import RayEngine
from continual_petl.serve.rows import Asked
from tests.ray_cluster import UNTIDY, needs_ray, two_workers


def test_streaming_is_refused(learned: Path) -> None:
    settings = ServeSettings(engine="ray")
    one = Asked(["w1"], ["first"], "reject", [1], put=print)
    with pytest.raises(Problem, match="stream: texts are not streamed from replicas on Ray Serve"):
        asyncio.run(RayEngine(learned, settings).answer(one, Catalog(learned)))


@pytest.mark.slow
@needs_ray
@pytest.mark.filterwarnings(*UNTIDY, "ignore::DeprecationWarning")
def test_replicas_answer_as_this_process_does(learned: Path, run: Run) -> None:
    texts = [f"w{10 + number} w{20 + number} w1" for number in range(20)]
    settings = ServeSettings(engine="ray", batch_rows=8)
    with two_workers():
        app = make_app(learned, settings, engine=RayEngine(learned, settings))
        with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
            found = client.post("/v1/predict", json={"inputs": texts, "task": "first"}).json()["predictions"]
            assert [record["answer"] for record in found] == [answer.value for answer in run.predict(texts, "first")]
            bad = client.post("/v1/predict", json={"inputs": [["w"] * 200], "task": "tags"})
            assert (bad.status_code, bad.json()["error"]["code"]) == (422, "bad_row")
            assert 'continual_petl_rows_total{lane="ray"} 20.0' in client.get("/metrics").text
