"""Runs the endpoint until it is stopped: uvicorn with one worker, limits for its connections, and a log of JSON lines.

uvicorn closes idle connections only after a response, and answers 503 beyond ``limit_concurrency``, which does not free
anything: clients that never finish a request would keep all file descriptors. Here, each connection is in one stage at a
time; only the endpoint's own work has no limit. Beyond the maximum number of connections, the one that has been waiting for
its client for the longest time is closed, as nginx does, so that a new client is always answered.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from pydantic_core import to_json
from starlette.types import ASGIApp
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from continual_petl.errors import InputError
from continual_petl.serve.app import engine_of, make_app
from continual_petl.serve.logs import log_config
from continual_petl.serve.problems import Problem
from continual_petl.serve.settings import ServeSettings

_log = logging.getLogger("continual_petl.serve")
_MOST, _FEWEST = 1024, 8
_MAX_HEAD_BYTES = 2**16
"""Maximum size of a request's head; the parser httptools has no limit of its own."""
_LOG_S = 1.0
"""At most one line per type of problem is logged in this many seconds."""
_GRACE_S = 1.0
"""If a body does not arrive in time, the application answers with status 408; otherwise, this much later, it is too late."""
_IDLE, _HEAD, _BODY, _COMPUTING, _SENDING = "idle", "head", "body", "computing", "sending"
_WHY = {
    _HEAD: "the client did not send a complete request head within {seconds:g} s",
    _BODY: "the client did not send the rest of a request within {seconds:g} s",
    _SENDING: "the client did not read the response for {seconds:g} s",
    "large": f"the head of the request is larger than {_MAX_HEAD_BYTES:,} bytes",
    "limit": "the limit of {most:,} connections was reached, and these had waited longest for their clients",
    "refused": "the limit of {most:,} connections was reached, and all others are being answered",
}


_TOO_MANY = Problem(503, "busy", "the endpoint has too many connections: try again later", retry_after=1)
_NOT_HTTP = Problem(
    400, "not_http", "this is not a request in HTTP/1.1: check the client, and that the address begins with http://"
)


def serve(
    folder: str | Path, settings: ServeSettings | None = None, *, ready: Callable[[str], None] = lambda address: None
) -> None:
    """Serve a run over HTTP until Ctrl-C or SIGTERM; requests accepted by then are still answered.

    Args:
        folder: the run folder.
        settings: how the run is served.
        ready: called with the endpoint's address once it is listening.

    Raises:
        InputError: if the folder holds no run, the backbone cannot be loaded, or the address cannot be used.
        StoreError: if the run is damaged, or was learned on another backbone.
    """
    settings = settings or ServeSettings()
    engine = engine_of(folder, settings)
    app = make_app(folder, settings, engine=engine)
    engine.load()  # here, so that its errors are raised unchanged
    listener = _listener(settings)
    server = server_of(app, settings, lambda: ready(_address(settings, listener)))
    with listener:
        server.run(sockets=[listener])


def server_of(app: ASGIApp, settings: ServeSettings, ready: Callable[[], None]) -> uvicorn.Server:
    """Return the server that runs an application, with limits for its connections.

    Args:
        app: the application.
        settings: how the run is served.
        ready: called once the server is listening.
    """
    connections = Connections(settings.max_connections or max_connections(), settings.client_s)
    config = uvicorn.Config(
        app,
        http=connections.protocol(AutoHTTPProtocol),
        access_log=False,
        log_config=log_config(),
        server_header=False,
        ws="none",
        timeout_keep_alive=30,
        # A client that never ends its request, or does not read the response, must not keep the process running.
        timeout_graceful_shutdown=math.ceil(settings.timeout_s) + 5,
        lifespan="on",
    )
    return _Server(config, connections, ready)


class _Server(uvicorn.Server):
    """A server that reports when it is listening, and closes connections whose clients take too long."""

    def __init__(self, config: uvicorn.Config, connections: Connections, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._connections, self._ready = connections, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then call ``ready``."""
        await super().startup(sockets=sockets)
        if not self.should_exit:
            self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Check the connections; uvicorn calls this every 0.1 s."""
        self._connections.check()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop after a signal; uvicorn would raise it again at the end, so that the process could not continue."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def _listener(settings: ServeSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server((settings.host, settings.port), family=family, dualstack_ipv6=dual)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (while ")[0]  # the rest names the address once more
        raise InputError(
            f"host, port: port {settings.port} of {settings.host} cannot be used ({why}); give another --port, or "
            "stop the program that listens there"
        ) from error


def _address(settings: ServeSettings, listener: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{listener.getsockname()[1]}"


def max_connections() -> int:
    """Return the default limit: half of this process's file descriptors, since banks and other files need the rest."""
    try:
        import resource
    except ImportError:  # on Windows
        return _MOST
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if allowed == resource.RLIM_INFINITY else max(_FEWEST, min(_MOST, allowed // 2))


class Connections:
    """The open connections of a server.

    Args:
        most: maximum number of connections.
        seconds: how long a client may take for the head of a request, and for its body, and for each part of a response.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._open: set[Any] = set()
        self._closed: Counter[str] = Counter()
        self._logged = -_LOG_S

    def protocol(self, base: type[Any]) -> type[asyncio.Protocol]:
        """Return a subclass of one of uvicorn's HTTP protocols whose connections are limited.

        Only ``transport``, ``cycle`` and its flags are used, which the protocols have in common.
        """
        limits = self

        class Limited(base):  # type: ignore[misc]
            stage: tuple[object, ...] = ()
            head_bytes = 0

            def connection_made(self, transport: asyncio.Transport) -> None:
                super().connection_made(transport)
                self.since = time.monotonic()
                limits._opened(self)

            def data_received(self, data: bytes) -> None:
                super().data_received(data)
                limits._received(self, len(data))

            def send_400_response(self, msg: str) -> None:
                self.transport.write(_response(_NOT_HTTP))
                self.transport.close()

            def connection_lost(self, error: Exception | None) -> None:
                limits._open.discard(self)
                super().connection_lost(error)

        return Limited

    def check(self) -> None:
        """Close the connections whose client takes too long; called several times a second."""
        now = time.monotonic()
        for connection in list(self._open):
            stage = _stage(connection, now)
            if stage in _WHY and now - connection.since > self._seconds + _GRACE_S * (stage == _BODY):
                self._close(connection, stage)
        if self._closed and now - self._logged >= _LOG_S:
            self._logged = now
            for why, number in self._closed.items():
                reason = _WHY[why].format(seconds=self._seconds, most=self._most)
                _log.error("%d connections were closed: %s", number, reason)
            self._closed.clear()

    def _opened(self, new: Any) -> None:
        self._open.add(new)
        if len(self._open) <= self._most:
            return
        now = time.monotonic()
        waiting = [each for each in self._open if each is not new and _stage(each, now) != _COMPUTING]
        if waiting:
            self._close(min(waiting, key=lambda connection: connection.since), "limit")
        else:
            self._close(new, "refused")

    def _received(self, connection: Any, size: int) -> None:
        cycle = connection.cycle
        between = cycle is None or (cycle.response_complete and not cycle.more_body)
        connection.head_bytes = connection.head_bytes + size if between else 0
        if connection.head_bytes > _MAX_HEAD_BYTES and connection in self._open:
            self._close(connection, "large")

    def _close(self, connection: Any, why: str) -> None:
        self._open.remove(connection)
        self._closed[why] += 1
        if why == "refused":
            connection.transport.write(_response(_TOO_MANY))
            connection.transport.close()
        else:
            connection.transport.abort()  # `close` would wait until the client has read everything


def _stage(connection: Any, now: float) -> str:
    """Return the current stage of a connection, and note since when it lasts."""
    cycle, unsent = connection.cycle, connection.transport.get_write_buffer_size()
    if cycle is None:
        stage = _HEAD
    elif unsent:
        stage = _SENDING
    elif cycle.more_body:
        stage = _BODY
    elif not cycle.response_complete:
        stage = _COMPUTING
    else:
        stage = _HEAD if connection.head_bytes else _IDLE
    # A client that reads slowly, but reads, changes the number of unsent bytes, which begins a new stage.
    if connection.stage != (stage, unsent, cycle):
        connection.stage, connection.since = (stage, unsent, cycle), now
    return stage


def _response(problem: Problem) -> bytes:
    """Return a response for a connection whose request is not read."""
    body = to_json(problem.to_json())
    headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    lines = [
        f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}",
        *(f"{name}: {text}" for name, text in (headers | problem.headers()).items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body
