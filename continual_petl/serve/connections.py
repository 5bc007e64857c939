"""Limits for connections: how many there are, and how long a client may take to send a request or to read a response.

uvicorn closes idle connections only after a response, and answers 503 beyond ``limit_concurrency``, which does not free
anything: clients that never finish a request would keep all file descriptors. Here, each connection is in one stage at a
time; only the endpoint's own work has no limit. Beyond the maximum number of connections, the one that has been waiting for
its client for the longest time is closed, as nginx does, so that a new client is always answered.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from pydantic_core import to_json

from continual_petl.serve.problems import Problem

_log = logging.getLogger("continual_petl.serve")
_MOST, _FEWEST = 1024, 8
_MAX_HEAD_BYTES = 2**16
"""Maximum size of a request's head; the parser httptools has no limit of its own."""
_GRACE_S = 1.0
"""If a body does not arrive in time, the application answers with status 408; otherwise, this much later, it is too late."""
_LOG_S = 1.0
"""At most one line per type of problem is logged in this many seconds."""
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


def max_connections() -> int:
    """Return the default limit: half of this process's file descriptors, since banks and other files need the rest."""
    try:
        import resource
    except ImportError:  # on Windows
        return _MOST
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if allowed == resource.RLIM_INFINITY else max(_FEWEST, min(_MOST, allowed // 2))


@dataclass(eq=False)
class _Open:
    """One connection.

    Args:
        protocol: uvicorn's object for it; only ``transport``, ``cycle`` and its flags are used, which its two HTTP protocols
            have in common.
    """

    protocol: Any
    stage: tuple[object, ...] = ()
    since: float = field(default_factory=time.monotonic)
    head_bytes: int = 0

    def stage_at(self, now: float) -> str:
        """Return the current stage, and note since when it lasts."""
        cycle, unsent = self.protocol.cycle, self.protocol.transport.get_write_buffer_size()
        # A client that reads slowly, but reads, changes the number of unsent bytes, which begins a new stage.
        if cycle is None:
            stage, of = _HEAD, 0
        elif unsent:
            stage, of = _SENDING, unsent
        elif cycle.more_body:
            stage, of = _BODY, 0
        elif not cycle.response_complete:
            stage, of = _COMPUTING, 0
        else:
            stage, of = _HEAD if self.head_bytes else _IDLE, 0
        if self.stage != (stage, of, cycle):
            self.stage, self.since = (stage, of, cycle), now
        return stage


class Connections:
    """The open connections of a server.

    Args:
        most: maximum number of connections.
        seconds: how long a client may take for the head of a request, and for its body, and for each part of a response.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._open: dict[object, _Open] = {}
        self._closed: Counter[str] = Counter()
        self._logged = 0.0

    def protocol(self, base: type[Any]) -> type[asyncio.Protocol]:
        """Return a subclass of one of uvicorn's HTTP protocols whose connections are limited."""
        limits = self

        class Limited(base):  # type: ignore[misc]
            def connection_made(self, transport: asyncio.Transport) -> None:
                super().connection_made(transport)
                limits._opened(self)

            def data_received(self, data: bytes) -> None:
                super().data_received(data)
                limits._received(self, len(data))

            def send_400_response(self, msg: str) -> None:
                self.transport.write(_response(_NOT_HTTP))
                self.transport.close()

            def connection_lost(self, error: Exception | None) -> None:
                limits._open.pop(self, None)
                super().connection_lost(error)

        return Limited

    def check(self) -> None:
        """Close the connections whose client takes too long; called several times a second."""
        now = time.monotonic()
        for connection in list(self._open.values()):
            stage = connection.stage_at(now)
            if stage in _WHY and now - connection.since > self._seconds + _GRACE_S * (stage == _BODY):
                self._close(connection, stage)
        if self._closed and now - self._logged >= _LOG_S:
            self._logged = now
            for why, number in self._closed.items():
                reason = _WHY[why].format(seconds=self._seconds, most=self._most)
                _log.error("%d connections were closed: %s", number, reason)
            self._closed.clear()

    def _opened(self, protocol: Any) -> None:
        new = self._open[protocol] = _Open(protocol)
        if len(self._open) <= self._most:
            return
        now = time.monotonic()
        waiting = [
            connection
            for connection in self._open.values()
            if connection is not new and connection.stage_at(now) != _COMPUTING
        ]
        if waiting:
            self._close(min(waiting, key=lambda connection: connection.since), "limit")
        else:
            self._close(new, "refused")

    def _received(self, protocol: Any, size: int) -> None:
        held, cycle = self._open.get(protocol), protocol.cycle
        if held is not None:
            between = cycle is None or (cycle.response_complete and not cycle.more_body)
            held.head_bytes = held.head_bytes + size if between else 0
            if held.head_bytes > _MAX_HEAD_BYTES:
                self._close(held, "large")

    def _close(self, connection: _Open, why: str) -> None:
        del self._open[connection.protocol]
        self._closed[why] += 1
        transport = connection.protocol.transport
        if why == "refused":
            transport.write(_response(_TOO_MANY))
            transport.close()
        else:
            transport.abort()  # `close` would wait until the client has read everything


def _response(problem: Problem) -> bytes:
    """Return a response for a connection whose request is not read."""
    body = to_json(problem.to_json())
    headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    lines = [
        f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}",
        *(f"{name}: {text}" for name, text in (headers | problem.headers()).items()),
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body
