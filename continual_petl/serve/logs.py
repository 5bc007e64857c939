"""The log of an endpoint: one JSON object per line on standard error. Texts are left out unless requested."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from continual_petl.errors import printable

EXTRA = "request"
"""Attribute of a log record that holds the fields of a request."""


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


def log_config() -> dict[str, Any]:
    """Return the configuration of `logging` for this package and uvicorn."""
    loggers = {"handlers": ["stderr"], "level": "INFO", "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": JsonLines}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
        "loggers": {"continual_petl.serve": loggers, "uvicorn": loggers},
    }
