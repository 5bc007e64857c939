"""The JSON Schema of a request for predictions. It says what `continual_petl.serve.rows` checks before it looks at a task.

What a schema cannot say, the descriptions do: the form that a task's rows have, the sum of a row's characters, and that the
number of tasks is the number of rows.
"""

from __future__ import annotations

from typing import Any

from continual_petl.heads.kinds import MAX_OPTIONS
from continual_petl.serve.settings import ServeSettings
from continual_petl.streams.sources.conversations import MOST_MESSAGES, ROLES

Schema = dict[str, Any]
_BASE64 = "^(?:[A-Za-z0-9+/]{4})+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


def request_schemas(settings: ServeSettings) -> dict[str, Schema]:
    """Return the schemas of a request and of its parts, by name."""
    text: Schema = {
        "type": "string",
        "description": "A text with at least one character that is not white space.",
        "minLength": 1,
        "maxLength": settings.max_characters,
        "pattern": r"\S",
    }
    words = {"type": "array", "items": _ref("Text"), "minItems": 1, "maxItems": settings.max_characters}
    pair = {"type": "array", "items": _ref("Text"), "minItems": 2, "maxItems": 2}
    messages = {"type": "array", "items": _ref("Message"), "minItems": 1, "maxItems": MOST_MESSAGES}
    conversation: Schema = {"anyOf": [_ref("Text"), messages]}
    options: Schema = {
        "type": "array",
        "items": _ref("Text"),
        "minItems": 2,
        "maxItems": MAX_OPTIONS,
        "uniqueItems": True,
    }
    image = {"type": "string", "contentEncoding": "base64", "pattern": _BASE64}
    objects = {
        "TextRow": {"text": _ref("Text")},
        "PairRow": {"text": _ref("Text"), "text_pair": _ref("Text")},
        "TokensRow": {"tokens": {"anyOf": [_ref("Text"), words]}},
        "SourceRow": {"source": _ref("Text")},
        "MessagesRow": {"messages": conversation},
        "SourceWithOptionsRow": {"source": _ref("Text"), "options": options},
        "MessagesWithOptionsRow": {"messages": conversation, "options": options},
        "ImageRow": {"image": image},
    }
    unnamed: Schema = {
        "description": "A row without a task name: a text, a list of two texts (a pair), or an object with the keys of one "
        "kind of task; the run must have a task that takes such rows.",
        "anyOf": [_ref("Text"), pair, _ref("ObjectRow")],
    }
    named: Schema = {
        "description": "A row in the form of its task: a text; a list of two texts (a task on pairs); a list of words "
        "(token-classification); a list of messages (a task on conversations); or an object. The characters of a row "
        f"together are at most {settings.max_characters:,}.",
        "anyOf": [_ref("Text"), words, messages, _ref("ObjectRow")],
    }
    return {
        "Text": text,
        "Message": _message(),
        **{
            name: _object(parts, description=f"A row with the keys {', '.join(parts)}.")
            for name, parts in objects.items()
        },
        "ObjectRow": {"description": "A row as an object.", "anyOf": list(map(_ref, objects))},
        "UnnamedRow": unnamed,
        "Row": named,
        "PredictRequest": _request(settings),
    }


def _request(settings: ServeSettings) -> Schema:
    properties = {
        "inputs": {
            "description": f"One row, or a list of at most {settings.max_rows:,} rows.",
            "anyOf": [
                _ref("Text"),
                _ref("ObjectRow"),
                {"type": "array", "items": _ref("Row"), "minItems": 1, "maxItems": settings.max_rows},
            ],
            "examples": [["How far is the moon?"]],
        },
        "task": {
            "description": "The task of all rows, or a list with one per row; null: the run finds the task of each row.",
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": ["string", "null"]}, "minItems": 1, "maxItems": settings.max_rows},
                {"type": "null"},
            ],
            "default": None,
        },
        "unknown": {
            "description": "What to return for rows without a task name that resemble no task's rows: no prediction "
            "(reject), or the prediction of the most probable task (nearest); null: the endpoint's setting.",
            "enum": ["reject", "nearest", None],
            "default": None,
        },
        "stream": {
            "type": "boolean",
            "description": "For one row of one named task that generates text: send the text in pieces, as server-sent "
            "events.",
            "default": False,
        },
    }
    named = {"required": ["task"], "properties": {"task": {"type": ["string", "array"]}}}
    unnamed = {
        "properties": {
            "inputs": {"anyOf": [{"type": ["string", "object"]}, {"type": "array", "items": _ref("UnnamedRow")}]}
        }
    }
    streams = {"required": ["stream"], "properties": {"stream": {"const": True}}}
    one_row = {
        "required": ["task"],
        "properties": {
            "inputs": {"type": ["string", "object", "array"], "maxItems": 1},
            "task": {"type": ["string", "array"], "items": {"type": "string"}, "maxItems": 1},
        },
    }
    return _object(properties, ["inputs"], description="Rows to predict.") | {
        "title": "PredictRequest",
        "allOf": [{"if": {"not": named}, "then": unnamed}, {"if": streams, "then": one_row}],
    }


def _message() -> Schema:
    """Return the schema of a message; a key without a value is not read, so null is allowed in any other key."""
    forms = (("role", ROLES, "content"), ("from", (*ROLES, "human", "gpt"), "value"))
    found = [
        _object({role: {"enum": list(roles)}, content: _ref("Text")}) | {"additionalProperties": {"type": "null"}}
        for role, roles, content in forms
    ]
    return {"description": "One message of a conversation, which ends with a user message.", "anyOf": found}


def _object(properties: Schema, required: list[str] | None = None, **more: Any) -> Schema:
    required = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False, **more}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
