"""Problems with requests: an HTTP status, a one-word code for programs, and a message of one paragraph."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import Request, Response
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from continual_petl.errors import StoreError

_log = logging.getLogger("continual_petl.serve")


class Problem(Exception):
    """The reason why a request gets no predictions.

    Args:
        status: the HTTP status.
        code: a one-word code for programs.
        message: one paragraph: what was found, what is allowed, what to do.
        row: 1-based number of the row that the problem is about.
        retry_after: seconds after which the same request may be sent again.
        headers: further headers of the response.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        row: int | None = None,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, code, message, row, retry_after, headers)  # replicas send problems by pickle
        self.status, self.code, self.message, self.row, self.retry_after = status, code, message, row, retry_after
        self._headers = headers or {}

    def __str__(self) -> str:
        return self.message

    def to_json(self) -> dict[str, Any]:
        """Return the body of the response."""
        problem: dict[str, Any] = {"code": self.code, "message": self.message}
        return {"error": problem if self.row is None else problem | {"row": self.row}}

    def headers(self) -> dict[str, str]:
        """Return the headers of the response."""
        own = {401: {"www-authenticate": "Bearer"}, 408: {"connection": "close"}}.get(self.status, {})
        after = {} if self.retry_after is None else {"retry-after": str(self.retry_after)}
        return {**own, **after, **self._headers}

    def response(self) -> Response:
        """Return the response to the request."""
        return Response(to_json(self.to_json()), self.status, self.headers(), "application/json")


def refused(request: Request, error: Exception) -> Response:
    """Return the response to a request that failed."""
    return as_problem(error, request).response()


def as_problem(error: Exception, request: Request | None = None) -> Problem:
    """Return what a client may learn about an error: neither paths on this machine nor tracebacks.

    Args:
        error: the error.
        request: the request, for messages about its path and method.
    """
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        path, method = ("", "") if request is None else (request.url.path, request.method)
        headers = error.headers or {}
        code, message = {
            404: ("unknown_path", f"there is no path {path!r:.200}: /docs lists all paths"),
            405: (
                "wrong_method",
                f"the path {path!r:.200} has no method {method:.20}; allowed: {headers.get('Allow')}",
            ),
        }.get(error.status_code, ("bad_request", f"the request cannot be read: {error.detail}"))
        return Problem(error.status_code, code, message, headers=headers)
    if isinstance(error, StoreError):
        _log.error("a task or bank cannot be read: %s", error)
        message = "a task of this request cannot be read at the moment: see the endpoint's log"
        return Problem(503, "unreadable", message, retry_after=1)
    _log.error("a request failed", exc_info=error)
    return Problem(500, "internal", "internal error in continual-petl: see the endpoint's log")


def bad_row(number: int, message: str, *, status: int = 422, code: str = "bad_row") -> Problem:
    """Return a problem with one row, given its 1-based number."""
    return Problem(status, code, f"row {number}: {message}", row=number)


def gone() -> Problem:
    """Return the problem for a request whose client no longer waits for the response, which nobody gets."""
    return Problem(499, "gone", "the client closed the connection")


def no_routing() -> Problem:
    """Return the problem of a row without a task in a run without routing statistics."""
    return Problem(422, "no_routing", "this run cannot find the task of a row: name the task of every row")
