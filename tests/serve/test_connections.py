"""Clients that never finish a request, or never read a response, do not keep others out; all with real sockets."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from continual_petl.cli.main import main
from continual_petl.serve import Client, ServeSettings, logs, make_app, request_handling, server
from continual_petl.serve.server import max_connections, server_of
from tests.processes import Forked

HEAD = b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
HALF = {
    "nothing": b"",
    "half a head": HEAD,
    "half a body": HEAD + b"Content-Length: 100\r\n\r\n{",
    "half a body in chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    "half a body for an unknown path": HEAD.replace(b"predict", b"none") + b"Content-Length: 100\r\n\r\n{",
}
Address = tuple[str, int]
PARSERS = [HttpToolsProtocol, pytest.param(H11Protocol, marks=pytest.mark.slow)]


@pytest.fixture(params=PARSERS, autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the parser of the test's servers: uvicorn uses h11 if httptools is not installed."""
    monkeypatch.setattr("continual_petl.serve.server.log_config", lambda: None)  # leaves the log to pytest
    monkeypatch.setattr("continual_petl.serve.server.AutoHTTPProtocol", request.param)


@contextmanager
def running(app: Any, **more: Any) -> Iterator[Address]:
    """Run an application, or the endpoint of a run folder, on a free port, in a thread."""
    ready, settings = threading.Event(), ServeSettings(**more)
    if isinstance(app, Path):
        app = make_app(app, settings)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = server_of(app, settings, ready.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        assert ready.wait(60)
        try:
            yield listener.getsockname()
        finally:
            server.force_exit = server.should_exit = True
            thread.join(60)


async def plain(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that reads the body, and answers with as many bytes as the path says."""
    if scope["type"] == "lifespan":
        for name in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{name}.complete"})
        return
    while (await receive()).get("more_body"):
        pass
    size = int(scope["path"][1:] or 2)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
    await send({"type": "http.response.body", "body": b"x" * size})


def opened(address: Address, content: bytes) -> socket.socket:
    """Open a connection and send something."""
    found = socket.create_connection(address, timeout=60)
    found.sendall(content)
    return found


def healthy(address: Address, path: str = "/") -> int:
    """Return the status of a request on a connection of its own."""
    return httpx2.get(f"http://{address[0]}:{address[1]}{path}", timeout=60).status_code


def rest(connection: socket.socket) -> bytes:
    """Return what a connection receives until it is closed."""
    found = b""
    try:
        while content := connection.recv(2**16):
            found += content
    except ConnectionResetError:
        pass
    return found


def until_closed(connection: socket.socket, content: bytes, seconds: float) -> None:
    """Send the same content again and again, until the other side closes the connection."""
    with suppress(OSError):
        while True:
            connection.sendall(content)
            time.sleep(seconds)


@pytest.mark.parametrize("content", [b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"])
def test_what_is_not_http_is_refused_in_words(content: bytes) -> None:
    with running(plain) as address, opened(address, content) as connection:
        head, _, body = rest(connection).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        error = {
            "code": "not_http",
            "message": "this is not a request in HTTP/1.1: check the client, and that the address begins with http://",
        }
        assert json.loads(body) == {"error": error}
        assert healthy(address) == 200


@pytest.mark.parametrize("half", HALF)
def test_unfinished_request_is_ended(
    learned: Path, half: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "path" in half:
        monkeypatch.setattr("continual_petl.serve.server._GRACE_S", 0.0)  # this path reads no body, so none is late
    with running(learned, client_s=0.2) as address, opened(address, HALF[half]) as slow:
        found = rest(slow)
        assert healthy(address, "/health/live") == 200
    if half in ("half a body", "half a body in chunks"):
        assert found.startswith(b"HTTP/1.1 408 ")
        assert b"connection: close" in found
        error = json.loads(found.split(b"\r\n\r\n")[1])["error"]
        assert error["code"] == "too_slow"
        assert error["message"] == "the body of the request did not arrive within 0.2 s: send it again"
    else:
        what = "send the rest of a request" if "path" in half else "send a complete request head"
        assert f"1 connections were closed: the client did not {what} within 0.2 s" in caplog.text


@pytest.mark.parametrize("half", ["half a head", "half a body"])
def test_slow_loris_is_ended(learned: Path, half: str) -> None:
    """A client that keeps sending single bytes has no more time than another."""
    with running(learned, client_s=0.5) as address, opened(address, HALF[half]) as slow:
        until_closed(slow, b"X", 0.05)
        assert healthy(address, "/health/live") == 200


def test_endless_head_is_ended() -> None:
    with running(plain, client_s=1000) as address, opened(address, HEAD) as slow:
        until_closed(slow, b"X-Header: " + b"x" * 1000 + b"\r\n", 0)
        assert healthy(address) == 200


def test_idle_connection_may_ask_again() -> None:
    with running(plain, client_s=0.2) as address, httpx2.Client(base_url=f"http://{address[0]}:{address[1]}") as client:
        stream = client.get("/").extensions["network_stream"]
        time.sleep(0.8)
        assert client.get("/").extensions["network_stream"] is stream


@pytest.mark.slow
def test_response_that_is_not_read_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    with running(plain, client_s=0.5) as address:
        with opened(address, b"GET /50000000 HTTP/1.1\r\nHost: x\r\n\r\n") as slow:
            time.sleep(1.5)
            assert len(rest(slow)) < 50_000_000
        assert "1 connections were closed: the client did not read the response for 0.5 s" in caplog.text


@pytest.mark.slow
def test_response_that_is_read_slowly_is_sent_completely() -> None:
    with (
        running(plain, client_s=1) as address,
        opened(address, b"GET /50000000 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") as slow,
    ):
        found = 0
        while content := slow.recv(2**22):
            found += len(content)
            time.sleep(0.1 if found < 40_000_000 else 0)
    assert found > 50_000_000


@pytest.mark.parametrize("half", HALF)
def test_more_connections_than_allowed(learned: Path, half: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing has to time out before another client is answered."""
    with ExitStack() as stack:
        address = stack.enter_context(running(learned, max_connections=8, client_s=1000))
        slow = [stack.enter_context(opened(address, HALF[half])) for _ in range(40)]
        with Client(f"http://{address[0]}:{address[1]}") as client:
            assert client.predict("w1 w2", "first")["task"] == "first"
        rest(slow[0])  # the oldest ones were closed
        time.sleep(0.2)
        slow[-1].settimeout(0.1)
        if "path" not in half:
            with pytest.raises(TimeoutError):
                slow[-1].recv(1)
    assert "the limit of 8 connections was reached" in caplog.text


def test_connections_whose_requests_are_computed_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    going = threading.Event()

    async def held(scope: Scope, receive: Receive, send: Send) -> None:
        while scope["type"] == "http" and not going.is_set():
            await asyncio.sleep(0.01)
        await plain(scope, receive, send)

    ask = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with ExitStack() as stack:
        address = stack.enter_context(running(held, max_connections=3, client_s=0.2))
        computed = [stack.enter_context(opened(address, ask)) for _ in range(3)]
        time.sleep(0.5)
        found = rest(stack.enter_context(opened(address, b"")))
        assert found.startswith(b"HTTP/1.1 503 ")
        assert json.loads(found.split(b"\r\n\r\n")[1])["error"]["code"] == "busy"
        assert b"retry-after: 1" in found
        going.set()
        assert all(rest(each).startswith(b"HTTP/1.1 200 ") for each in computed)
    assert "the limit of 3 connections was reached, and all others are being answered" in caplog.text


def test_bodies_together_have_a_limit(learned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_handling, "_MAX_BODIES", 3)
    part = HEAD + b"Content-Length: 1000\r\n\r\n" + b" " * 900
    with ExitStack() as stack:
        address = stack.enter_context(running(learned, max_body_bytes=1000, client_s=1000))
        slow = [stack.enter_context(opened(address, part)) for _ in range(4)]
        found = slow[-1].recv(2**16)
        assert found.startswith(b"HTTP/1.1 503 ")
        for each in slow:
            each.close()
        assert healthy(address, "/health/live") == 200
        while (status := _predicted(address)) == 503:  # until the endpoint has seen that they were closed
            time.sleep(0.01)
        assert status == 200


def _predicted(address: Address) -> int:
    body = {"inputs": ["w1 w2"], "task": "first"}
    return httpx2.post(f"http://{address[0]}:{address[1]}/v1/predict", json=body, timeout=60).status_code


def _with_few_files(words: list[str]) -> int:
    server.log_config = logs.log_config  # type: ignore[attr-defined]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    return main(words)


@pytest.mark.slow
@pytest.mark.parametrize("half", HALF)
def test_more_connections_than_file_descriptors(learned: Path, half: str) -> None:
    with Forked(partial(_with_few_files, ["serve", str(learned), "--port", "0"])) as process, ExitStack() as stack:
        url = process.stdout.readline().split(" at ")[1].split()[0]
        host, port = url.removeprefix("http://").split(":")
        for _ in range(2_000):  # all at once
            hurried = stack.enter_context(socket.socket())
            hurried.setblocking(False)
            hurried.connect_ex((host, int(port)))
        for _ in range(600):
            stack.enter_context(opened((host, int(port)), HALF[half]))
        with Client(url) as client:
            assert client.predict(["w1 w2"] * 3, ["first", "second", "many"])
        stack.pop_all().close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        messages = [json.loads(line)["message"] for line in process.stderr]
    assert any("the limit of 128 connections was reached" in message for message in messages)


@pytest.mark.parametrize(("soft", "most"), [(64, 32), (256, 128), (1024, 512), (20_000, 1024), (10, 8), (-1, 1024)])
def test_limit_follows_from_the_file_descriptors(monkeypatch: pytest.MonkeyPatch, soft: int, most: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert max_connections() == most
