"""Serve a report on this machine during a run, redrawn whenever the run folder changes.

The server listens on this machine only, accepts only requests whose Host header names this machine (which prevents DNS
rebinding), and serves only the files of a report, no other file in its folder or elsewhere.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from continual_petl.errors import InputError, StoreError

HOST = "127.0.0.1"
_FILES = re.compile(r"/(index\.html|plotly\.min\.js|stamp|tasks/\d{6,}\.js)?(\?\d*[0-9a-f]*)?")
_HEADERS = {
    "Cache-Control": "no-store",  # browsers must not cache files
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class _Handler(SimpleHTTPRequestHandler):
    timeout = 30  # idle connections are closed

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def end_headers(self) -> None:
        """Send headers that prevent other sites from reading this page."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def send_head(self) -> Any:
        """Send the headers of a response, for GET and HEAD alike."""
        port = self.connection.getsockname()[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self.send_error(HTTPStatus.FORBIDDEN, f"This server only answers to {HOST}:{port}")
            return None
        if not _FILES.fullmatch(self.path) or Path(self.translate_path(self.path)).is_symlink():
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        return super().send_head()


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnects during a response."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Server:
    """Serves a report to this machine only, and calls a function periodically.

    Args:
        folder: the report.
        port: 0 means any free one.
        again: called periodically to redraw the page if the run has changed. If the run cannot be read at the moment, or
            the page cannot be written, the failure is reported once, and the call retried; the page stays unchanged.
        on_failure: called with a description of the failure.
        seconds: time between two calls.

    Raises:
        InputError: if the port cannot be used; the message names a free one.
    """

    def __init__(
        self,
        folder: Path,
        port: int,
        again: Callable[[], None],
        *,
        on_failure: Callable[[str], None],
        seconds: float = 2.0,
    ) -> None:
        handler = partial(_Handler, directory=str(folder))
        try:
            self._http = _Http((HOST, port), handler)
        except (OSError, OverflowError) as error:
            with ThreadingHTTPServer((HOST, 0), handler) as server:
                free = server.server_address[1]
            raise InputError(
                f"--port: {port} cannot be used ({getattr(error, 'strerror', None) or error}); {free} is free, and 0 means "
                "any free port"
            ) from error
        self._again, self._on_failure, self._seconds = again, on_failure, seconds
        self._stopped = threading.Event()

    @property
    def address(self) -> str:
        """The address for a browser."""
        return f"http://{HOST}:{self._http.server_address[1]}/"

    def run(self) -> None:
        """Serve until `stop` is called, or an error is raised that a retry cannot fix."""
        thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        reported = None
        try:
            while not self._stopped.wait(self._seconds):
                try:
                    self._again()
                    reported = None
                except (StoreError, InputError, OSError) as error:
                    if reported != (reported := str(error)):
                        self._on_failure(f"the page was not updated: {reported}")
        finally:
            self._http.shutdown()
            self._http.server_close()
            thread.join()

    def stop(self) -> None:
        """End `run`."""
        self._stopped.set()
