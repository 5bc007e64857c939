"""What happens to every request: its host and body are checked, it is logged and counted, and its errors become responses."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Sequence
from typing import Any

from fastapi import Request, Response
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from continual_petl.serve.logs import EXTRA
from continual_petl.serve.metrics import Metrics
from continual_petl.serve.problems import Problem, gone
from continual_petl.serve.request_rows import PredictRequest, fault_of

_log = logging.getLogger("continual_petl.serve")
_MAX_BODIES = 32
"""The bodies of all unanswered requests may take the memory of this many of the largest size."""


class BodyLimit:
    """Refuses a body that is larger than allowed, even if the headers give a smaller size, or that takes too long to arrive.

    Args:
        app: the application.
        max_bytes: maximum number of bytes of one body; the bodies of all unanswered requests may have 32 times as many.
        seconds: maximum number of seconds from the head of a request to the end of its body.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float) -> None:
        self._app, self._max_bytes, self._seconds = app, max_bytes, seconds
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and stop reading its body once a limit is reached."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"")
        if declared.isdigit() and int(declared) > self._max_bytes:
            await problem_response(self._too_large())(scope, receive, send)
            return
        read, until = 0, asyncio.get_running_loop().time() + self._seconds
        incomplete = True

        async def limited() -> Message:
            nonlocal read, incomplete
            try:
                async with asyncio.timeout_at(until if incomplete else None):
                    message = await receive()
            except TimeoutError as error:
                raise Problem(
                    408, "too_slow", f"the body of the request did not arrive within {self._seconds:g} s: send it again"
                ) from error
            incomplete = message.get("more_body", False)
            size = len(message.get("body", b""))
            read += size
            self._held += size
            if read > self._max_bytes:
                raise self._too_large()
            if self._held > _MAX_BODIES * self._max_bytes:
                raise Problem(503, "busy", "the endpoint holds too many large requests: try again later", retry_after=1)
            return message

        try:
            await self._app(scope, limited, send)
        finally:
            self._held -= read

    def _too_large(self) -> Problem:
        return Problem(
            413, "too_large", f"the body of the request is larger than {self._max_bytes:,} bytes: send several requests"
        )


class AllowedHosts:
    """Refuses requests whose Host header is not allowed, so that pages of other sites cannot reach the endpoint.

    Args:
        app: the application.
        hosts: the names that are allowed.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if its host is allowed."""
        allowed = scope["type"] != "http"

        async def reached(*_: object) -> None:
            nonlocal allowed
            allowed = True

        async def unsent(_: Message) -> None:
            """Leave out the response that the check would send."""

        if not allowed:
            await TrustedHostMiddleware(reached, self._hosts, www_redirect=False)(scope, receive, unsent)
        if allowed:
            await self._app(scope, receive, send)
        else:
            host = (
                f"the header Host is {Headers(scope=scope).get('host', '')!r:.100}, which this endpoint does not allow"
            )
            problem = Problem(400, "bad_host", f"{host}: use its own name, or start it with --allowed-host NAME")
            await problem_response(problem)(scope, receive, send)


async def read_request(request: Request) -> PredictRequest:
    """Return the body of a request for predictions; FastAPI's own reading keeps the last value of a repeated key.

    Raises:
        Problem: if it cannot be read, or is not the body of such a request.
    """
    try:
        content = await request.body()
    except ClientDisconnect as error:
        raise gone() from error
    if content and not re.match(r"application/([\w.-]+\+)?json\s*(;|$)", request.headers.get("content-type", ""), re.I):
        message = "the body is not declared as JSON: send the header Content-Type: application/json"
        raise Problem(415, "bad_request", message)
    body = _strict_json(content) if content else None
    try:
        return PredictRequest.model_validate(body)
    except ValidationError as error:
        fault = fault_of(body, error.errors()[0]["loc"])
        raise Problem(422, "bad_request", f"{fault}; /docs describes a request") from error


def _strict_json(content: bytes) -> Any:
    try:
        return json.loads(content, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        reason = "its brackets are nested too deeply; a request needs at most six levels"
    except UnicodeDecodeError as error:
        reason = f"byte {error.start + 1:,} is not UTF-8; encode the text as UTF-8"
    except json.JSONDecodeError as error:
        reason = f"character {error.pos + 1:,} is not what JSON has there ({error.msg}); write it with a JSON library"
    except ValueError:
        reason = "it has a number of too many digits; a request needs no numbers"
    raise Problem(400, "bad_request", f"the body cannot be read as JSON: {reason}")


def _no_constant(name: str) -> Any:
    raise Problem(
        400, "bad_request", f"the body cannot be read as JSON: {name} is not JSON; a request needs no numbers"
    )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    for key, value in pairs:
        if key in parsed:
            raise Problem(422, "bad_request", f"the body has the key {key!r:.80} twice in one object: give it once")
        parsed[key] = value
    return parsed


class Observed:
    """Logs and counts every request.

    Args:
        app: the application.
        metrics: counts the requests.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; afterwards log and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 499  # the status if the client disconnects before there is a response

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        # Request handlers add fields, such as the number of rows.
        fields: dict[str, object] = scope.setdefault("state", {}).setdefault("log", {})
        try:
            await self._app(scope, receive, observed)
        except Exception:
            status = 500  # an outer middleware sends the response
            raise
        finally:
            seconds = time.perf_counter() - started
            route = scope.get("route")
            path = getattr(route, "path", "(other)")
            self._metrics.requests.labels(path, status).inc()
            self._metrics.seconds.labels(path).observe(seconds)
            shown = {"method": scope["method"], "path": path, "status": status, "ms": round(1000 * seconds, 1)}
            _log.info("request", extra={EXTRA: shown | fields})


def problem_response(problem: Problem) -> Response:
    """Return the response to a request that gets no predictions."""
    return Response(to_json(problem.to_json()), problem.status, problem.headers(), "application/json")


def refused(request: Request, error: Exception) -> Response:
    """Return the response to a request that failed."""
    return problem_response(as_problem(error, request))


def as_problem(error: Exception, request: Request | None = None) -> Problem:
    """Return what a client may learn about an error: neither paths on this machine nor tracebacks.

    Args:
        error: the error.
        request: the request, for messages about its path and method.
    """
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        allow = (error.headers or {}).get("Allow")
        path, method = ("", "") if request is None else (request.url.path, request.method)
        code, message = {
            404: ("unknown_path", f"there is no path {path!r:.200}: /docs lists all paths"),
            405: ("wrong_method", f"the path {path!r:.200} has no method {method:.20}; allowed: {allow}"),
        }.get(error.status_code, ("bad_request", f"the request cannot be read: {error.detail}"))
        return Problem(error.status_code, code, message, allow=allow)
    _log.error("a request failed", exc_info=error)
    return Problem(500, "internal", "internal error in continual-petl: see the endpoint's log")
