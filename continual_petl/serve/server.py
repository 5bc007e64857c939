"""Runs the endpoint until it is stopped: uvicorn with one worker, and a log of JSON lines."""

from __future__ import annotations

import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from continual_petl.errors import InputError
from continual_petl.serve.app import make_app
from continual_petl.serve.connections import Connections, max_connections
from continual_petl.serve.local_engine import Engine, LocalEngine
from continual_petl.serve.logs import log_config
from continual_petl.serve.settings import ServeSettings


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
    engine = _engine(folder, settings)
    app = make_app(folder, settings, engine=engine)
    engine.load()  # here, so that its errors are raised unchanged
    listener = _listener(settings)
    server = server_of(app, settings, lambda: ready(_address(settings, listener)))
    with _handled_signals(), listener:
        server.run(sockets=[listener])


def server_of(app: ASGIApp, settings: ServeSettings, ready: Callable[[], None]) -> uvicorn.Server:
    """Return the server that runs an application, with limits for its connections.

    Args:
        app: the application.
        settings: how the run is served.
        ready: called once the server is listening.
    """
    config = uvicorn.Config(
        app,
        access_log=False,
        log_config=log_config(),
        server_header=False,
        ws="none",
        timeout_keep_alive=30,
        # A client that never ends its request, or does not read the response, must not keep the process running.
        timeout_graceful_shutdown=math.ceil(settings.timeout_s) + 5,
        lifespan="on",
    )
    config.load()
    connections = Connections(settings.max_connections or max_connections(), settings.client_s)
    config.http_protocol_class = connections.protocol(config.http_protocol_class)
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


def _engine(folder: str | Path, settings: ServeSettings) -> Engine:
    if settings.engine == "ray":
        from continual_petl.serve.ray_engine import RayEngine  # imports Ray

        return RayEngine(folder, settings)
    return LocalEngine(folder, settings)


def _listener(settings: ServeSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise InputError(
            f"host, port: port {settings.port} of {settings.host} cannot be used ({error.strerror}); give another --port, or "
            "stop the program that listens there"
        ) from error
    return listener


def _address(settings: ServeSettings, listener: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{listener.getsockname()[1]}"


@contextmanager
def _handled_signals() -> Iterator[None]:
    """Let the process continue after a signal has stopped the server: uvicorn raises the signal again at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
