"""The OpenAPI reference: what each path takes, and every status and media type with which it answers.

FastAPI generates it without them, since the responses are written as they are and not made from response models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from pydantic import TypeAdapter

from continual_petl.serve import responses
from continual_petl.serve.accepted_rows import AcceptedRows
from continual_petl.serve.request_schema import request_schemas
from continual_petl.serve.settings import ServeSettings

_TYPES = (
    responses.Predictions, responses.Tasks, responses.Task, responses.Live, responses.Ready, responses.Refusal
)  # fmt: skip
_REFS = "#/components/schemas/{model}"
_JSON, _TEXT, _EVENTS = "application/json", "text/plain", "text/event-stream"
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
    401: {"WWW-Authenticate": "Bearer"},
    405: {"Allow": "The methods that the path has"},
    429: {"Retry-After": "Seconds after which the request may succeed"},
    503: {"Retry-After": "Seconds after which the request may succeed, if that is known"},
}
_ALWAYS = (400, 405, 413, 500, 503)
"""Statuses with which every path may answer."""
_EVENTS_FORM = (
    'Events `data: {"text": PIECE}` while the text is generated; then `event: end`, whose data is the response as JSON, or '
    "`event: error`, whose data is a Refusal."
)
_PATHS: dict[tuple[str, str], tuple[dict[str, Any], tuple[int, ...]]] = {
    ("/v1/predict", "post"): (
        {_JSON: "Predictions", _EVENTS: _EVENTS_FORM}, (401, 404, 408, 409, 410, 415, 422, 429, 504)
    ),
    ("/v1/tasks", "get"): ({_JSON: "Tasks"}, (401,)),
    ("/v1/tasks/{task}", "get"): ({_JSON: "Task"}, (401, 404, 410)),
    ("/metrics", "get"): ({_TEXT: "Prometheus's text format"}, (401,)),
    ("/health/live", "get"): ({_JSON: "Live"}, ()),
    ("/health/ready", "get"): ({_JSON: "Ready"}, ()),
}  # fmt: skip


def add_reference(app: FastAPI, settings: ServeSettings, taken: Callable[[], AcceptedRows]) -> None:
    """Let an application describe its requests and responses completely, as long as the learned tasks stay the same.

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
            for (path, method), (answers, refusals) in _PATHS.items():
                refusals = tuple(refusal for refusal in refusals if refusal != 401 or settings.token_file is not None)
                schema["paths"][path][method]["responses"] = _responses(answers, {*refusals, *_ALWAYS})
            ready = schema["paths"]["/health/ready"]["get"]["responses"]["503"]["content"][_JSON]
            ready["schema"] = {"anyOf": [_ref("Ready"), _ref("Refusal")]}
            _, types = TypeAdapter.json_schemas(
                [(response_type, "serialization", TypeAdapter(response_type)) for response_type in _TYPES],
                ref_template=_REFS,
            )
            schema["components"]["schemas"] = types["$defs"] | request_schemas(settings, described)
        assert app.openapi_schema is not None  # FastAPI keeps it
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _responses(answers: dict[str, Any], refusals: set[int]) -> dict[str, Any]:
    content = {
        media: {"schema": _ref(schema) if media == _JSON else {"type": "string", "description": schema}}
        for media, schema in answers.items()
    }
    declared: dict[str, Any] = {"200": {"description": "The answer", "content": content}}
    for status in sorted(refusals):
        media = {_JSON: {"schema": _ref("Refusal")}}
        declared[str(status)] = {"description": _PROBLEMS[status], "content": media}
        if status in _HEADERS:
            declared[str(status)]["headers"] = {
                name: {"description": meaning, "schema": {"type": "integer" if name == "Retry-After" else "string"}}
                for name, meaning in _HEADERS[status].items()
            }
    return declared


def _ref(name: str) -> dict[str, str]:
    return {"$ref": _REFS.format(model=name)}
