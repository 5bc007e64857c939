"""Streams a text in pieces, as server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).

Events without a name hold ``{"text": PIECE}``; the last one is ``end``, with the predictions as in any other response, or
``error``, with the problem.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import StreamingResponse

from continual_petl.serve.problems import Problem


class Pieces:
    """Passes pieces from the thread that generates them to the event loop in which this object was created."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.found: asyncio.Queue[str | None] = asyncio.Queue()
        """The pieces; None after the last one."""
        self.gone = False
        """Whether the pieces are no longer read."""

    def __call__(self, piece: str) -> None:
        """Pass on a piece, unless it is empty.

        Raises:
            Problem: if the pieces are no longer read.
        """
        if self.gone:
            raise Problem(499, "gone", "the client closed the connection")
        if piece:
            self._loop.call_soon_threadsafe(self.found.put_nowait, piece)


def event(data: Any, name: str | None = None) -> bytes:
    r"""Return one event; its data is JSON in ASCII, so it is a single line for every client.

    Example:
        >>> event({"text": "a b"}, "end")
        b'event: end\ndata: {"text": "a b"}\n\n'
    """
    lines = [f"data: {json.dumps(data)}", "", ""]
    return "\n".join(lines if name is None else [f"event: {name}", *lines]).encode("ascii")


async def streamed(events: AsyncGenerator[bytes]) -> StreamingResponse:
    """Return the response that sends events; errors before the first event are raised here."""
    first = await anext(events)

    async def all_events() -> AsyncGenerator[bytes]:
        try:
            yield first
            async for message in events:
                yield message
        finally:
            await events.aclose()

    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(all_events(), headers=headers, media_type="text/event-stream")
