"""Tokens, host names and limits of an endpoint, and what its errors and log reveal."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from continual_petl.errors import InputError
from continual_petl.serve import ServeSettings, make_app
from continual_petl.serve.logs import JsonLines
from tests.serve.conftest import Open

ROW = {"inputs": ["w1 w2"], "task": "first"}
TOKEN = "t" * 20


def test_token_is_required_except_for_health_page_and_reference(learned: Path, opened: Open, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    client = opened(learned, token_file=file)
    for path in ("/v1/tasks", "/v1/tasks/first", "/metrics"):
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}):
            response = client.get(path, headers=headers)
            assert (response.status_code, response.json()["error"]["code"]) == (401, "no_token")
            assert response.headers["www-authenticate"] == "Bearer"
        assert client.get(path, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert client.post("/v1/predict", json=ROW).status_code == 401
    assert client.post("/v1/predict", json=ROW, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    for path in ("/", "/health/live", "/health/ready", "/docs", "/openapi.json"):
        assert client.get(path).status_code == 200


@pytest.mark.parametrize("text", ["short", "", "two words of a token", "nön-ascii-token-of-20"])
def test_bad_token_file_is_refused(learned: Path, tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="token_file"):
        make_app(learned, ServeSettings(token_file=file))


def test_missing_token_file_is_refused(learned: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read as ASCII text"):
        make_app(learned, ServeSettings(token_file=tmp_path / "none"))


def test_other_host_names_are_refused(client: TestClient) -> None:
    """A malicious page can make its own host name resolve to this machine (DNS rebinding)."""
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""):
        assert client.get("/v1/tasks", headers={"host": host}).status_code == 400
    for host in ("localhost:8000", "127.0.0.1:8000", "[::1]:8000"):
        assert client.get("/v1/tasks", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    ("settings", "fragment"),
    [
        ({"host": "0.0.0.0"}, "host: 0.0.0.0 can be reached from other machines"),
        ({"host": "models.example.org"}, "--allowed-host models.example.org"),
        ({"port": 70_000}, "key port: got 70000; allowed: a whole number of at least 0 and of at most 65535"),
        ({"batch_rows": 0}, "key batch_rows: got 0; allowed: a whole number of at least 1"),
        ({"window_ms": -1}, "window_ms: got -1"),
        ({"timeout_s": 0}, "key timeout_s: got 0; allowed: a number above 0"),
        ({"max_rows": 10, "max_waiting": 5}, "max_waiting: got 5, but a request may have 10 rows"),
        ({"resident_bytes": -1}, "key resident_bytes: got -1; allowed: a whole number of at least 0"),
        ({"allowed_hosts": ("models*",)}, "allowed_hosts: got 'models"),
        ({"allowed_hosts": ("*",)}, "allowed_hosts: got"),
        ({"engine": "gpu"}, "engine: got 'gpu'; allowed: local, ray"),
        ({"replicas": 2}, "only the ray engine supports replicas"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], fragment: str) -> None:
    with pytest.raises(InputError, match=fragment.replace("(", r"\(")):
        ServeSettings(**settings)


def test_settings_for_other_machines() -> None:
    settings = ServeSettings(host="0.0.0.0", allowed_hosts=("models.example.org",))
    assert settings.hosts == ["models.example.org"]


def test_limits(learned: Path, opened: Open) -> None:
    client = opened(learned, max_rows=3, max_characters=20, max_body_bytes=500, max_waiting=3)
    found = client.post("/v1/predict", json={"inputs": ["w1"] * 4, "task": "first"})
    assert (found.status_code, found.json()["error"]["code"]) == (413, "too_many_rows")
    found = client.post("/v1/predict", json={"inputs": ["w1", "w" * 21], "task": "first"})
    assert (found.status_code, found.json()["error"]["code"]) == (413, "too_many_characters")
    assert found.json()["error"]["row"] == 2
    found = client.post("/v1/predict", json={"inputs": ["w1 " * 500], "task": "first"})
    assert (found.status_code, found.json()["error"]["code"]) == (413, "too_large")


def test_body_without_a_length_is_limited_too(learned: Path, opened: Open) -> None:
    client = opened(learned, max_body_bytes=500)

    def pieces() -> Any:
        yield b'{"inputs": ["'
        for _ in range(100):
            yield b"w1 " * 20
        yield b'"]}'

    found = client.post("/v1/predict", content=pieces(), headers={"content-type": "application/json"})
    assert (found.status_code, found.json()["error"]["code"]) == (413, "too_large")


def test_text_is_never_read_as_a_path(client: TestClient, learned: Path) -> None:
    """An image task would read a text as the path of a file on the server; see `continual_petl.serve.request_rows`."""
    found = client.post("/v1/predict", json={"inputs": [str(learned / "stream.yaml")], "task": "first"})
    assert found.status_code == 200
    assert found.json()["predictions"][0]["answer"] in ("no", "yes")


def test_unknown_paths_and_methods_are_errors_of_the_same_form(client: TestClient) -> None:
    assert client.get("/v2/predict").json()["error"]["code"] == "unknown_path"
    assert client.get("/v1/predict").json()["error"]["code"] == "wrong_method"
    assert client.get("/v1/tasks/..%2f..%2fstream.yaml").status_code == 404


def test_internal_error_shows_no_traceback(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: Any, **more: Any) -> None:
        raise RuntimeError("secret /etc/passwd")

    monkeypatch.setattr("continual_petl.serve.served_run.Predictor.resume", fail)
    with caplog.at_level(logging.ERROR, "continual_petl.serve"):
        found = client.post("/v1/predict", json=ROW)
    assert (found.status_code, found.json()["error"]["code"]) == (500, "internal")
    assert "secret" not in found.text
    assert "secret /etc/passwd" in caplog.text
    assert 'continual_petl_requests_total{path="/v1/predict",status="500"} 1.0' in client.get("/metrics").text


def test_log_has_no_texts_unless_they_are_asked_for(
    client: TestClient, learned: Path, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "continual_petl.serve"):
        client.post("/v1/predict", json=ROW)
        opened(learned, log_texts=True).post("/v1/predict", json=ROW)
    lines = [
        json.loads(JsonLines().format(record)) for record in caplog.records if record.name == "continual_petl.serve"
    ]
    without, with_texts = [line for line in lines if line["message"] == "request"]
    assert without["path"] == "/v1/predict"
    assert (without["status"], without["rows"], without["tasks"]) == (200, 1, ["first"])
    assert "w1 w2" not in json.dumps(without)
    assert with_texts["predictions"][0]["text"] == "w1 w2"


def test_each_log_record_is_one_line() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "a\nb\x1b[2J", None, None)
    line = JsonLines().format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == "a\\nb\\x1b[2J"
