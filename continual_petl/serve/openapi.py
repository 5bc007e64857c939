"""The OpenAPI reference: what each path takes, and every status and media type with which it answers.

FastAPI generates it from `declared`, except for the request for predictions, which follows the learned tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from continual_petl.serve import responses
from continual_petl.serve.accepted_rows import AcceptedRows
from continual_petl.serve.request_schema import request_schemas
from continual_petl.serve.settings import ServeSettings

_PROBLEMS = {
    400: "The request is not HTTP or not JSON, or its Host header is not allowed",
    401: "The token is missing or wrong",
    404: "No task has this name",
    405: "The path has no such method",
    408: "The body did not arrive in time",
    409: "The request has the form below, but its parts do not fit each other or its tasks: a row does not have the form "
    "that its own task takes, a conversation does not end with a user message, an image cannot be read, a row is too long "
    "for the backbone, or there is not one task per row",
    410: "The task was forgotten on purpose",
    413: "The request has too many rows, characters, pixels or bytes",
    415: "The body is not declared as JSON",
    422: "The request does not have the form below, which follows what the learned tasks take",
    429: "Too many rows are waiting",
    500: "Internal error",
    503: "The endpoint cannot answer at the moment",
    504: "There was no prediction in time",
}
_HEADERS = {
    401: ("WWW-Authenticate", "Bearer"),
    405: ("Allow", "The methods that the path has"),
    429: ("Retry-After", "Seconds after which the request may succeed"),
    503: ("Retry-After", "Seconds after which the request may succeed, if that is known"),
}
_ALWAYS = (400, 405, 413, 500, 503)
"""Statuses with which every path may answer."""
EVENTS = {
    "text/event-stream": 'Events `data: {"text": PIECE}` while the text is generated; then `event: end`, whose data is the '
    "response as JSON, or `event: error`, whose data is a Refusal."
}
BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/PredictRequest"}}},
    }
}
METRICS = {"text/plain": "Prometheus's text format"}


def declared(
    answer: Any, *refusals: int, texts: dict[str, str] | None = None, unready: Any = responses.Refusal
) -> dict[int | str, dict[str, Any]]:
    """Return the responses of a path, for FastAPI.

    Args:
        answer: the type of the JSON with which it answers; None if it answers only with texts.
        refusals: the statuses with which it may refuse a request, beside those of every path.
        texts: what it may answer instead of JSON, by media type.
        unready: the type of its response with status 503.
    """
    content = {media: {"schema": {"type": "string", "description": about}} for media, about in (texts or {}).items()}
    found: dict[int | str, dict[str, Any]] = {200: {"description": "The answer", "content": content, "model": answer}}
    for status in sorted({*refusals, *_ALWAYS}):
        found[status] = {"description": _PROBLEMS[status], "model": unready if status == 503 else responses.Refusal}
        if answer is None:  # FastAPI would declare the model as a text
            del found[status]["model"]
            found[status]["content"] = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
        if about := _HEADERS.get(status):
            name, meaning = about
            schema = {"type": "integer" if name == "Retry-After" else "string"}
            found[status]["headers"] = {name: {"description": meaning, "schema": schema}}
    return found


def add_reference(app: FastAPI, settings: ServeSettings, taken: Callable[[], AcceptedRows]) -> None:
    """Let an application describe the requests that it takes, as long as the learned tasks stay the same.

    Args:
        app: the application, with all its paths.
        settings: how the run is served.
        taken: returns what the learned tasks take.
    """
    generated, described = app.openapi, None

    def openapi() -> dict[str, Any]:
        nonlocal described
        if app.openapi_schema is None or described != taken():
            app.openapi_schema, described = None, taken()
            schema = generated()
            # FastAPI expects that any parameter of a path may be refused, even a text.
            del schema["paths"]["/v1/tasks/{task}"]["get"]["responses"]["422"]
            types = schema["components"]["schemas"]
            for name in ("HTTPValidationError", "ValidationError"):
                types.pop(name, None)
            types |= request_schemas(settings, described)
        assert app.openapi_schema is not None  # FastAPI keeps it
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
