"""A light HTTP client for measuring endpoints: requests are encoded beforehand, responses are kept as bytes.

Closed loop: each connection sends its next request when the previous one has been answered, which measures throughput. Open
loop: requests are sent at fixed times, even if earlier ones are still unanswered, and latency counts from the time at which
a request was due, so a slow answer neither delays later requests nor hides how long they had to wait (which
would be coordinated omission).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class Answers:
    """The responses, in the order of the requests."""

    bodies: list[bytes]
    seconds: list[float]
    """Latency of each request."""
    statuses: list[int] = field(default_factory=list)
    elapsed: float = 0.0
    """Seconds from the first request to the last response."""


def encoded(url: str, path: str, body: bytes) -> bytes:
    """Return a POST request as bytes."""
    host = urlsplit(url).netloc
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def closed_loop(url: str, requests: Sequence[bytes], connections: int) -> Answers:
    """Send requests over several connections, each as soon as a connection is free."""
    return asyncio.run(_load(url, requests, connections, None))


def open_loop(url: str, requests: Sequence[bytes], connections: int, per_second: float) -> Answers:
    """Send requests at a constant rate; there should be more connections than requests in flight."""
    return asyncio.run(_load(url, requests, connections, per_second))


async def _load(url: str, requests: Sequence[bytes], connections: int, per_second: float | None) -> Answers:
    address = urlsplit(url)
    found = Answers([b""] * len(requests), [0.0] * len(requests), [0] * len(requests))
    numbers = iter(range(len(requests)))
    streams = [await asyncio.open_connection(address.hostname, address.port) for _ in range(connections)]
    began = time.perf_counter()

    async def use(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in numbers:
            due = time.perf_counter() if per_second is None else began + number / per_second
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            writer.write(requests[number])
            found.statuses[number], found.bodies[number] = await _response(reader)
            found.seconds[number] = time.perf_counter() - due

    await asyncio.gather(*(use(*stream) for stream in streams))
    found.elapsed = time.perf_counter() - began
    for _, writer in streams:
        writer.close()
    return found


async def _response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    status, _, rest = head.partition(b"\r\n")
    length = int(rest.partition(b"content-length:")[2].partition(b"\r\n")[0])
    return int(status.split()[1]), await reader.readexactly(length)
