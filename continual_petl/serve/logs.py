"""The log of an endpoint: one JSON object per line on standard error. Texts are left out unless requested.

A separate thread writes the lines. If standard error is a pipe that nobody reads, lines beyond a size limit are dropped and
counted; responses never wait for the log.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from contextlib import suppress
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any

from continual_petl.errors import printable

EXTRA = "request"
"""Attribute of a log record that holds the fields of a request."""
LOGGER = "continual_petl.serve"
_MAX_BYTES = 2**20
"""Maximum size of the waiting lines."""
_LAST_WAIT_S = 2.0
"""Maximum number of seconds that the process waits for the last lines to be written before it exits."""


class JsonLines(logging.Formatter):
    """Formats log records as JSON lines: time, level, message, then the fields of a request."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = {"time": time, "level": record.levelname.lower(), "message": record.getMessage()}
        fields |= getattr(record, EXTRA, {})
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps({key: printable(value) if isinstance(value, str) else value for key, value in fields.items()})


class NeverWaits(logging.Handler):
    """A handler whose caller never waits: a thread writes the lines, and lines beyond a limit are dropped.

    Args:
        descriptor: file descriptor to write to.
        max_bytes: maximum size of the waiting lines.
    """

    def __init__(self, descriptor: int = 2, max_bytes: int = _MAX_BYTES) -> None:
        super().__init__()
        self._descriptor, self._max_bytes = descriptor, max_bytes
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._num_bytes = 0
        self.num_dropped = 0
        """Number of lines that were dropped."""
        self._counting = threading.Lock()
        # A daemon thread, so that the process can exit even if nobody reads its standard error.
        self._thread = threading.Thread(target=self._work, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on a line, or drop it if too many are waiting."""
        line = self._line(record)
        with self._counting:
            if self._num_bytes and self._num_bytes + len(line) > self._max_bytes:
                self.num_dropped += 1
                return
            self._num_bytes += len(line)
        self._lines.put(line)

    def close(self) -> None:
        """Wait a moment for the remaining lines to be written."""
        self._lines.put(None)
        self._thread.join(_LAST_WAIT_S)
        super().close()

    def _line(self, record: logging.LogRecord) -> bytes:
        return (self.format(record) + "\n").encode("utf-8", "backslashreplace")

    def _work(self) -> None:
        reported = 0
        line: bytes | None = b""
        while line is not None:
            line = self._lines.get()
            written = self._written(line or b"")
            with self._counting:
                self._num_bytes -= len(line or b"")
                self.num_dropped += not written
                dropped = self.num_dropped - reported
            if written and dropped and self._written(self._note(dropped)):
                reported += dropped

    def _note(self, dropped: int) -> bytes:
        text = f"{dropped:,} lines of the log were dropped here: standard error was not read fast enough, or was full"
        return self._line(logging.makeLogRecord({"levelname": "WARNING", "msg": text}))

    def _written(self, content: bytes) -> bool:
        """Write to the file descriptor; return whether it took everything, which a full disk does not."""
        # Not through sys.stderr, whose lock Python would wait for when the process exits.
        with suppress(OSError):
            while content:
                content = content[os.write(self._descriptor, content) :]
        return not content


def num_dropped() -> int:
    """Return the number of lines that the handlers of the endpoint's log have dropped."""
    return sum(handler.num_dropped for handler in logging.getLogger(LOGGER).handlers if isinstance(handler, NeverWaits))


def log_config() -> dict[str, Any]:
    """Return the configuration of `logging` for this package, uvicorn and asyncio."""
    loggers = {"handlers": ["stderr"], "level": "INFO", "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": JsonLines}},
        "handlers": {"stderr": {"()": NeverWaits, "formatter": "json"}},
        "loggers": {LOGGER: loggers, "uvicorn": loggers, "asyncio": loggers},
    }
