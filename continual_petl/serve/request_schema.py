"""The JSON Schema of a request for predictions: what `continual_petl.serve.request_rows` does not refuse with status 422.

It follows the tasks of the run: a request has only rows of forms that some of them take. What a schema cannot say, the
descriptions do: that a row has the form of its own task, the sum of a row's characters, the order of messages, and that the
number of tasks is the number of rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI

from continual_petl.kind import MAX_OPTIONS
from continual_petl.predictor.routes import MAX_CANDIDATES
from continual_petl.serve.accepted_rows import PAIR, UNNAMED, AcceptedRows, Form, bare
from continual_petl.serve.settings import ServeSettings
from continual_petl.streams.sources.conversations import MOST_MESSAGES, ROLES

Schema = dict[str, Any]
_BASE64 = "^(?:[A-Za-z0-9+/]{4})+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_REF = "#/components/schemas/"
BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/PredictRequest"}}},
    }
}


def request_schemas(settings: ServeSettings, taken: AcceptedRows) -> dict[str, Schema]:
    """Return the schemas of a request and of its parts, by name.

    Args:
        settings: how the run is served.
        taken: what the tasks of the run take.
    """
    text: Schema = {
        "type": "string",
        "description": "A text with at least one character that is not white space.",
        "minLength": 1,
        "maxLength": settings.max_characters,
        # What Python takes for white space; \\s has other characters in each language.
        "pattern": r"[^\s\u001c-\u001f\u0085]",
    }
    cells: dict[str, Schema] = {
        "tokens": {"anyOf": [_ref("Text"), _ref("Words")]},
        "messages": {"anyOf": [_ref("Text"), _ref("Messages")]},
        "options": _list("Text", 2, MAX_OPTIONS) | {"uniqueItems": True},
        "image": {"type": "string", "contentEncoding": "base64", "pattern": _BASE64},
    }
    unnamed = [name for form in UNNAMED if form in taken.unnamed for name in _written(form, taken, named=False)]
    # Without any task, every request is refused because of the names in it.
    forms = [form for form in taken.objects() if form in taken.named] + sorted(taken.named.difference(taken.objects()))
    named = list(dict.fromkeys(name for form in forms or UNNAMED for name in _written(form, taken, named=True)))
    objects = {_name(keys): {key: cells.get(key, _ref("Text")) for key in keys} for keys in (*taken.objects(), *forms)}
    refused = (
        "A row that does not have the form of its own task is refused with status 409. The characters of a row together are "
        f"at most {settings.max_characters:,}."
    )
    schemas = {
        "Text": text,
        "Words": _list("Text", 1, settings.max_characters),
        "Pair": _list("Text", 2, 2),
        "Messages": _list("Message", 1, MOST_MESSAGES),
        "Message": _message(),
        **{
            name: _object(parts, description=f"A row with the keys {', '.join(parts)}.")
            for name, parts in objects.items()
        },
        "NamedRow": {
            "description": f"A row whose task is named, in one of the forms that the learned tasks take. {refused}",
            "anyOf": list(map(_ref, named)),
        },
        "UnnamedRow": {
            "description": "A row without a task name, in one of the forms that the tasks that can be found take.",
            "anyOf": list(map(_ref, unnamed)),
        },
        "PredictRequest": _request(settings, named, unnamed, streams=taken.streams and settings.streams),
    }
    return {name: schema for name, schema in schemas.items() if name in _used(schemas, "PredictRequest")}


def _request(settings: ServeSettings, named: Sequence[str], unnamed: Sequence[str], *, streams: bool) -> Schema:
    one_of_several = {"type": ["string", "null"] if unnamed else "string"}
    properties = {
        "inputs": {
            "description": f"One row, or a list of at most {settings.max_rows:,} rows.",
            **_inputs({"NamedRow": named, "UnnamedRow": unnamed}, settings.max_rows),
            "examples": [["How far is the moon?"]],
        },
        "task": {
            "description": "The task of all rows, or a list with one per row; null: the run finds the task of each row.",
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": one_of_several, "minItems": 1, "maxItems": settings.max_rows},
                *([{"type": "null"}] if unnamed else []),
            ],
            **({"default": None} if unnamed else {}),
        },
        "reject": {
            "description": "Rows without a task name get no prediction if their share `known` is below this number; never: "
            "the most probable task predicts every row; null: the endpoint's setting, by default the limit of each task.",
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
                {"const": "never"},
                {"type": "null"},
            ],
            "default": None,
        },
        "candidates": {
            "description": "Of each row without a task name, also return the predictions of so many of its most probable "
            "tasks; null: of none.",
            "type": ["integer", "null"],
            "minimum": 1,
            "maximum": MAX_CANDIDATES,
            "default": None,
        },
        "stream": {
            "type": "boolean",
            "description": "For one row of one named task that generates text: send the text in pieces, as server-sent "
            "events.",
            "default": False,
            **({} if streams else {"const": False}),
        },
    }
    names = {"type": ["string", "array"], "items": {"type": "string"}}
    some_named = {"required": ["task"], "properties": {"task": {"type": ["string", "array"], "contains": names}}}
    one_row = {"inputs": {"type": ["string", "object", "array"], "maxItems": 1}, "task": {**names, "maxItems": 1}}
    conditions = [_if("task", names, _rows({"NamedRow": named}, settings.max_rows))]
    if unnamed:
        conditions.append({"if": {"not": some_named}, "then": _rows({"UnnamedRow": unnamed}, settings.max_rows)})
    if streams:
        conditions.append(_if("stream", {"const": True}, {"required": ["task"], "properties": one_row}))
    required = ["inputs"] if unnamed else ["inputs", "task"]
    described = _object(properties, required, description="Rows to predict.")
    return described | {"title": "PredictRequest", "allOf": conditions}


def _if(key: str, schema: Schema, then: Schema) -> Schema:
    return {"if": {"required": [key], "properties": {key: schema}}, "then": then}


def _rows(kinds: dict[str, Sequence[str]], most: int) -> Schema:
    return {"properties": {"inputs": _inputs(kinds, most)}}


def _inputs(kinds: dict[str, Sequence[str]], most: int) -> Schema:
    """Return the schema of one row or a list of rows; a row that is a list has to be in a list."""
    kinds = {name: forms for name, forms in kinds.items() if forms}
    alone = {form: None for forms in kinds.values() for form in forms if form not in ("Pair", "Words", "Messages")}
    rows = list(map(_ref, kinds))
    item = rows[0] if len(rows) == 1 else {"anyOf": rows}
    return {"anyOf": [*map(_ref, alone), {"type": "array", "items": item, "minItems": 1, "maxItems": most}]}


def _written(form: Form, taken: AcceptedRows, *, named: bool) -> list[str]:
    """Return the names of all ways to write a row of a form."""
    objects = [form] if named else [keys for keys, found in taken.objects().items() if found == form]
    return [*bare(form, named=named), *map(_name, objects)]


def _name(keys: Form) -> str:
    if keys == PAIR:
        return "PairRow"
    return ("With" if keys[-1] == "options" else "And").join(map(str.capitalize, keys)) + "Row"


def _used(schemas: dict[str, Schema], name: str) -> set[str]:
    """Return the names of a schema and of all that it refers to."""
    names, new = set[str](), {name}
    while new:
        names |= new
        new = {ref for known in new for ref in re.findall(f'"{_REF}(\\w+)"', json.dumps(schemas[known]))} - names
    return names


def _message() -> Schema:
    """Return the schema of a message; a key without a value is not read, so null is allowed in any other key."""
    forms = (("role", ROLES, "content"), ("from", (*ROLES, "human", "gpt"), "value"))
    schemas = [
        _object({role: {"enum": list(roles)}, content: _ref("Text")}) | {"additionalProperties": {"type": "null"}}
        for role, roles, content in forms
    ]
    return {"description": "One message of a conversation, which ends with a user message.", "anyOf": schemas}


def _object(properties: Schema, required: list[str] | None = None, **more: Any) -> Schema:
    required = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False, **more}


def _ref(name: str) -> Schema:
    return {"$ref": _REF + name}


def _list(name: str, fewest: int, most: int) -> Schema:
    return {"type": "array", "items": _ref(name), "minItems": fewest, "maxItems": most}


def add_reference(app: FastAPI, settings: ServeSettings, taken: Callable[[], AcceptedRows]) -> None:
    """Let an application describe the requests that it takes, which follow the learned tasks.

    Args:
        app: the application, with all its paths.
        settings: how the run is served.
        taken: returns what the learned tasks take.
    """
    generated = app.openapi

    def openapi() -> dict[str, Any]:
        schema = generated()  # FastAPI keeps it
        # FastAPI expects that any parameter of a path may be refused, even a text.
        schema["paths"]["/v1/tasks/{task}"]["get"]["responses"].pop("422", None)
        types = schema["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            types.pop(name, None)
        return schema | {"components": schema["components"] | {"schemas": types | request_schemas(settings, taken())}}

    app.openapi = openapi  # type: ignore[method-assign]
