"""A streamed text equals the text of `Run.predict`; a client that disconnects stops it; refusals are ordinary responses."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient

from continual_petl import Run, learn
from continual_petl.serve import Client, EndpointError, ServeSettings, make_app
from tests.learned import LearnedRuns
from tests.serve.conftest import TRAINING, Open
from tests.serve.declared import CheckedClient
from tests.small import small
from tests.streams_in_code import generating_stream

SAMPLED = {"max_new_tokens": 12, "min_new_tokens": 8, "do_sample": True, "temperature": 3.0}
ROW = "w10 w20"


@pytest.fixture(scope="module")
def texts(backbone_folder: Callable[..., Path], learned_runs: LearnedRuns) -> Path:
    """Return a run with tasks that generate text, and one that does not."""
    return learned_runs(generating_stream(backbone_folder("llama"), SAMPLED, training=TRAINING, bank=small("lora")))


@pytest.fixture(scope="module")
def asked(texts: Path) -> Iterator[TestClient]:
    """Return a client for an endpoint that no test changes."""
    with CheckedClient(make_app(texts, ServeSettings()), base_url="http://127.0.0.1") as found:
        yield found


@contextmanager
def _served(folder: Path, **settings: Any) -> Iterator[str]:
    """Serve a run over loopback, in a thread."""
    server = uvicorn.Server(uvicorn.Config(make_app(folder, ServeSettings(**settings)), log_config=None, lifespan="on"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def _slowly(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.1) -> list[str]:
    """Slow the generation down; return a list that grows by one entry per token."""
    import continual_petl.learner.streaming as streaming

    found: list[str] = []
    real = streaming.Pieces.put

    def put(self: streaming.Pieces, value: Any) -> None:
        time.sleep(seconds)
        found.append("")
        real(self, value)

    monkeypatch.setattr(streaming.Pieces, "put", put)
    return found


def _body(**more: Any) -> dict[str, Any]:
    return {"inputs": ROW, "task": "texts", "stream": True} | more


def test_events_hold_the_pieces_and_the_record(asked: TestClient, texts: Path) -> None:
    response = asked.post("/v1/predict", json=_body())
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    *pieces, last = response.text.removesuffix("\n\n").split("\n\n")
    wanted = Run(texts).predict(ROW, "texts").value
    assert "".join(json.loads(piece.removeprefix("data: "))["text"] for piece in pieces) == wanted
    name, data = last.split("\n")
    assert name == "event: end"
    plain = asked.post("/v1/predict", json=_body(stream=False)).json()
    assert json.loads(data.removeprefix("data: ")) == plain
    assert plain["predictions"][0]["answer"] == wanted
    assert 'continual_petl_rows_total{queue="texts"}' in asked.get("/metrics").text


def test_last_event_says_whether_the_text_is_near_a_tie(backbone_folder: Callable[..., Path], tmp_path: Path) -> None:
    training = TRAINING | {"precision": "bf16"}
    greedy = {"max_new_tokens": 6}
    run = learn(
        generating_stream(backbone_folder("llama"), greedy, training=training, bank=small("lora")), tmp_path / "run"
    )
    rows = [f"w{number} w{number + 9}" for number in range(10, 16)]
    with CheckedClient(make_app(run.store.folder, ServeSettings()), base_url="http://127.0.0.1") as client:
        for row in rows:
            last = client.post("/v1/predict", json=_body(inputs=row)).text.removesuffix("\n\n").rsplit("data: ", 1)[1]
            (record,) = json.loads(last)["predictions"]
            assert record["near_tie"] == run.predict(row, "texts").near_tie
            assert record["answer"] == run.predict(row, "texts").value
        found = client.post("/v1/predict", json={"inputs": rows, "reject": "never"}).json()["predictions"]
    assert "texts" in {record["task"] for record in found}
    for record, wanted in zip(found, run.predict(rows, reject="never"), strict=True):
        assert (record["task"], record["answer"], record["near_tie"]) == (wanted.task, wanted.value, wanted.near_tie)


@pytest.mark.parametrize(
    ("changed", "status", "fragment"),
    [
        ({"inputs": ["w1", "w2"]}, 422, "stream: got 2 rows; give one row and the name of its task"),
        ({"task": None}, 422, "stream: got a row without a task; give one row and"),
        ({"task": "labels"}, 409, "task 'labels' is a classification task, which generates no text"),
        ({"task": "beams"}, 409, "task 'beams' generates with 2 beams"),
        ({"task": "none"}, 404, "task 'none' has not been learned"),
        ({"inputs": " "}, 422, ": empty; each row must be a text"),
        ({"stream": "yes"}, 422, "stream: it is 'yes'; give true or false"),
    ],
)
def test_refusals_are_ordinary_responses(asked: TestClient, changed: Any, status: int, fragment: str) -> None:
    response = asked.post("/v1/predict", json=_body(**changed))
    assert response.status_code == status
    assert fragment in response.json()["error"]["message"]


def test_token_and_time_limit_also_apply_to_streams(
    texts: Path, tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token.txt").write_text("a-token-of-24-characters")
    client = opened(texts, token_file=tmp_path / "token.txt", timeout_s=1.0)
    assert client.post("/v1/predict", json=_body()).status_code == 401
    headers = {"authorization": "Bearer a-token-of-24-characters"}
    assert client.post("/v1/predict", json=_body(), headers=headers).text.count("event: end") == 1
    _slowly(monkeypatch, 0.3)
    late = client.post("/v1/predict", json=_body(), headers=headers)
    assert late.status_code == 200
    assert late.text.endswith('no prediction within 1 s: send fewer rows, or try again when the load is lower"}}\n\n')
    assert "event: error" in late.text
    _slowly(monkeypatch, 1.5)
    late = client.post("/v1/predict", json=_body(), headers=headers)
    assert (late.status_code, late.json()["error"]["code"]) == (504, "timed_out")


def test_error_after_the_first_piece_is_an_event(
    asked: TestClient, texts: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: Any, decoding: Any) -> None:
        decoding.put("a piece")
        raise RuntimeError("out of memory: 9 GiB")

    monkeypatch.setattr("continual_petl.predictor.generate.respond", fails)
    text = opened(texts).post("/v1/predict", json=_body()).text
    assert text.startswith('data: {"text": "a piece"}\n\nevent: error\ndata: {"error": {"code": "memory"')


def test_client_streams_over_loopback(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = str(Run(texts).predict(ROW, "texts").value)
    with _served(texts) as address, Client(address) as client:
        assert "".join(client.generate(ROW, "texts")) == wanted
        for inputs in (ROW, [ROW]):
            with pytest.raises(EndpointError, match="task 'none' has not been learned"):
                list(client.generate(inputs, "none"))
        tokens = _slowly(monkeypatch, 0.2)
        pieces = client.generate(ROW, "texts")
        assert wanted.startswith(next(pieces))
        assert len(tokens) < 8, "the first piece must come before the last token"
        pieces.close()  # type: ignore[attr-defined]
        assert client.predict(ROW, "texts")["answer"] == wanted  # waits until the queue is free
        assert len(tokens) < 8, "generation must stop early, since the client disconnected"


def test_stop_sends_the_whole_text(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = str(Run(texts).predict(ROW, "texts").value)
    _slowly(monkeypatch, 0.05)
    with _served(texts) as address:
        client = Client(address)
        pieces = client.generate(ROW, "texts")
        found = next(pieces)
    # Leaving the block has stopped the server.
    assert found + "".join(pieces) == wanted
    client.close()


def test_client_reports_a_text_that_breaks_off(texts: Path) -> None:
    import httpx2

    def client(text: str) -> Client:
        headers = {"content-type": "text/event-stream"}
        return Client(
            "http://x", transport=httpx2.MockTransport(lambda _: httpx2.Response(200, text=text, headers=headers))
        )

    with pytest.raises(EndpointError, match="the connection was closed before the text ended"):
        list(client('data: {"text": "a"}\n\n').generate("w1", "texts"))
    body = '{"error": {"code": "timed_out", "message": "no prediction within 1 s"}}'
    with pytest.raises(EndpointError, match="no prediction within 1 s") as caught:
        list(client(f"event: error\ndata: {body}\n\n").generate("w1", "texts"))
    assert caught.value.code == "timed_out"
