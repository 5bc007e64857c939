"""Serve a report on this machine while a course goes on, drawn anew when the run changes.

Only this machine is listened to, only requests that name it are answered (a page elsewhere whose name was made to point at
this machine, DNS rebinding, names itself), and only the files of a report are given: nothing else of the folder that they lie
in, nor of any other.
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
    "Cache-Control": "no-store",  # every file is looked at again
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class _Handler(SimpleHTTPRequestHandler):
    timeout = 30  # a connection that says nothing is not kept

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def end_headers(self) -> None:
        """Send what keeps a page of another site from reading this one."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def send_head(self) -> Any:
        """Send the head of an answer: to GET and HEAD alike."""
        port = self.connection.getsockname()[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self.send_error(HTTPStatus.FORBIDDEN, f"This server answers to {HOST}:{port} alone")
            return None
        if not _FILES.fullmatch(self.path) or Path(self.translate_path(self.path)).is_symlink():
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        return super().send_head()


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over a reader who went away in the middle of an answer."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Server:
    """Serves a report to this machine alone, and calls a function again and again.

    Args:
        folder: the report.
        port: 0 means any that is free.
        again: called every so many seconds; it redraws what has changed. A run that cannot be read just now, or a page that
            cannot be written, is reported once, and tried again; the page stays as it was.
        tell: takes the report of what failed.
        seconds: between two calls.

    Raises:
        InputError: if the port is taken; a free one is named.
    """

    def __init__(
        self,
        folder: Path,
        port: int,
        again: Callable[[], None],
        *,
        tell: Callable[[str], None],
        seconds: float = 2.0,
    ) -> None:
        handler = partial(_Handler, directory=str(folder))
        try:
            self._http = _Http((HOST, port), handler)
        except (OSError, OverflowError) as error:
            with ThreadingHTTPServer((HOST, 0), handler) as other:
                free = other.server_address[1]
            raise InputError(
                f"--port: {port} cannot be used ({getattr(error, 'strerror', None) or error}); {free} is free, and 0 means "
                "any that is"
            ) from error
        self._again, self._tell, self._seconds = again, tell, seconds
        self._stopped = threading.Event()

    @property
    def address(self) -> str:
        """Where a browser finds it."""
        return f"http://{HOST}:{self._http.server_address[1]}/"

    def run(self) -> None:
        """Serve until `stop` is called, or something is raised that another try does not mend."""
        thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        told = None
        try:
            while not self._stopped.wait(self._seconds):
                try:
                    self._again()
                    told = None
                except (StoreError, InputError, OSError) as error:
                    if told != (told := str(error)):
                        self._tell(f"the page was not updated: {told}")
        finally:
            self._http.shutdown()
            self._http.server_close()
            thread.join()

    def stop(self) -> None:
        """End `run`."""
        self._stopped.set()
