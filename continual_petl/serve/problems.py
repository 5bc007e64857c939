"""Problems with requests: an HTTP status, a one-word code for programs, and a message of one paragraph."""

from __future__ import annotations

import re
from typing import Any

from continual_petl.errors import InputError


class Problem(Exception):
    """The reason why a request gets no predictions.

    Args:
        status: the HTTP status.
        code: a one-word code for programs.
        message: one paragraph: what was found, what is allowed, what to do.
        row: 1-based number of the row that the problem is about.
        retry_after: seconds after which the same request may succeed.
        allow: the methods that the path has, if it has not the one of the request.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        row: int | None = None,
        retry_after: int | None = None,
        allow: str | None = None,
    ) -> None:
        super().__init__(status, code, message, row, retry_after, allow)
        self.status, self.code, self.message, self.row, self.retry_after = status, code, message, row, retry_after
        self.allow = allow

    def __reduce__(self) -> tuple[object, ...]:
        """Return what pickle needs to recreate this problem, since replicas send problems to the endpoint's process."""
        return Problem, self.args

    def __str__(self) -> str:
        return self.message

    def to_json(self) -> dict[str, Any]:
        """Return the body of the response."""
        problem: dict[str, Any] = {"code": self.code, "message": self.message}
        return {"error": problem if self.row is None else problem | {"row": self.row}}

    def headers(self) -> dict[str, str]:
        """Return the headers of the response."""
        own = {401: {"www-authenticate": "Bearer"}, 408: {"connection": "close"}}.get(self.status, {})
        after = None if self.retry_after is None else str(self.retry_after)
        more = {"retry-after": after, "allow": self.allow}
        return own | {name: value for name, value in more.items() if value is not None}


class Unreadable(Problem):
    """A task cannot be read right now.

    It may have been forgotten in the meantime, which re-reading the run folder would show.

    Args:
        task: its name.
    """

    def __init__(self, task: str) -> None:
        super().__init__(503, "unreadable", f"task {task!r} cannot be read: see the endpoint's log", retry_after=1)


def bad_row(number: int, message: str, *, status: int = 422, code: str = "bad_row") -> Problem:
    """Return a problem with one row, given its 1-based number."""
    return Problem(status, code, f"row {number}: {message}", row=number)


def unusable(error: InputError, number: int) -> Problem:
    """Return the problem with a row that was predicted alone, with the row's number in place of the error's "row 1"."""
    message = re.sub(r"\b(row 1|image 1 of 1)\b", f"row {number}", str(error), count=1)
    return Problem(409, "bad_row", message, row=number)


def gone() -> Problem:
    """Return the problem for a request whose client no longer waits for the response, which nobody gets."""
    return Problem(499, "gone", "the client closed the connection")


def no_routing() -> Problem:
    """Return the problem of a row without a task in a run without routing statistics."""
    return Problem(422, "no_routing", "this run cannot find the task of a row: name the task of every row")
