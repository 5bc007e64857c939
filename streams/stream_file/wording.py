"""Rephrase pydantic's validation errors for stream files: what was found, what is allowed, what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from continual_petl._strict_model import UNKNOWN_NAME
from continual_petl.errors import counted, did_you_mean
from continual_petl.streams.schema.consistency import Inconsistent, KeyPath
from continual_petl.streams.schema.data_spec import AS_ROWS, SPLITS, TAG
from continual_petl.streams.stream_file.json_schema import Schema, keys_of, node_at, options

_NUMBERS = {"integer": "a whole number", "number": "a number"}
_BOUNDS = {
    "minimum": "of at least",
    "exclusiveMinimum": "above",
    "maximum": "of at most",
    "exclusiveMaximum": "below",
}


def word_errors(error: ValidationError, root: Schema) -> Iterator[tuple[KeyPath, str]]:
    """Yield the key path and the paragraph of every mistake.

    Args:
        error: a validation error of a model of the schema.
        root: the JSON Schema of that model.
    """
    found = list(_word(error, root, ()))
    alike = Counter(shape for path, _ in found if (shape := _of_any_row(path)))
    for path, text in found:
        if (shape := _of_any_row(path)) is None:
            yield path, text
        elif others := alike.pop(shape, 0):
            yield path, text + (f" (the same goes for {counted(others - 1, 'other row')})" if others > 1 else "")


def _of_any_row(path: KeyPath) -> KeyPath | None:
    """Return the path of a key in a row of data without the number of the row; None for any other key."""
    for number, (key, split, row) in enumerate(zip(path, path[1:], path[2:], strict=False)):
        if key == "data" and split in SPLITS and isinstance(row, int):
            return (*path[: number + 2], *path[number + 3 :])
    return None


def _word(error: ValidationError, root: Schema, above: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    for details in error.errors(include_url=False):
        loc = (*above, *details["loc"])
        cause = details.get("ctx", {}).get("error")
        if isinstance(cause, Inconsistent):
            yield from ((_without_tags(loc) + path, text) for path, text in cause.problems)
        elif isinstance(cause, ValidationError):
            yield from _word(cause, root, loc)
        elif not _all_entries_were_wrong(details):
            keys = loc[:-1] if _is_about_key(loc) else loc
            yield _without_tags(keys), _paragraph(details, loc, root)


def _without_tags(loc: KeyPath) -> KeyPath:
    return tuple(part for part in loc if not str(part).startswith(TAG))


def _is_about_key(loc: KeyPath) -> bool:
    """Return whether the error is about a key of a mapping with arbitrary keys, rather than its value."""
    return loc[-1:] == ("[key]",)


def _all_entries_were_wrong(details: ErrorDetails) -> bool:
    """Return whether a list is only reported as too short because its entries have mistakes."""
    if details["type"] != "too_short":
        return False
    given = details["input"]
    return isinstance(given, list | tuple | dict) and len(given) >= details["ctx"]["min_length"]


def _paragraph(details: ErrorDetails, loc: KeyPath, root: Schema) -> str:
    given, kind = details["input"], details["type"]
    if kind == "dict_type" and len(loc) > 2 and loc[-3] == AS_ROWS:
        return f"got {show(given)}; a row is a mapping from column to value, such as {{text: some text, label: a}}"
    if kind == "extra_forbidden" or _is_about_key(loc):
        above = loc[:-1] if kind == "extra_forbidden" else loc[:-2]
        return _unknown_key(str(loc[len(above)]), given, node_at(root, above) or {}, details)
    node = node_at(root, loc) or {}
    if kind == "missing":
        description = " ".join(str(node.get("description", "")).split("\n\n")[0].split())
        given_as = next((f"`{loc[-1]}: {_flow(value, node)}`" for value in node.get("examples", ())), "")
        example = f", for instance {given_as}" if given_as else ""
        return f"is missing: add it{example}{f'. {description}' if description else f'; allowed: {describe(node)}'}"
    guess = _did_you_mean(
        given, (value for option in options(node) for value in (*option.get("enum", ()), option.get("const")))
    )
    if isinstance(cause := details.get("ctx", {}).get("error"), ValueError):
        return f"{cause}{guess}"
    if kind == "shape":
        return f"got {show(given)}; {details['msg']}"
    hint = ""
    if kind == "string_type" and isinstance(given, int | float):
        hint = f"; if it is meant as text, put it in quotes: '{show(given)}'"
    elif given is None:
        hint = "; leave the key out for its default"
    if kind == "finite_number":
        hint = "; it must be finite"
    if kind == UNKNOWN_NAME and isinstance(given, str) and not guess:
        hint = "; if a package adds it, install that package"
    allowed = describe(node) or details["msg"].removeprefix("Input should be ").lower()
    return f"got {show(given)}{guess}; allowed: {allowed}{hint}"


def _unknown_key(key: str, given: Any, parent: Schema, details: ErrorDetails) -> str:
    allowed = keys_of(parent)
    named = next((o["properties"][key] for o in options(parent) if key in o.get("properties", {})), None)
    if details["type"] == "extra_forbidden" and named is not None:
        return f"is a{named['description'][1:-1]}, which is given as well: keep one of the two"
    hint = _did_you_mean(key, keys_of(parent, other_names=True))
    homes = [name for name in allowed if key in keys_of(node_at(parent, (name,)) or {})]
    each = {key for task in options(node_at(parent, ("tasks", 0)) or {}) for key in task.get("properties", {})}
    if not homes and not hint and key in each:
        hint = f" (it belongs to a task; on the command line: --tasks.0.{key}, or --tasks.*.{key} for all tasks)"
    if homes and not hint:
        hint = f" (it belongs under {' or '.join(homes)})"
    return f"unknown key {key!r}{hint}; allowed here: {', '.join(allowed)}"


def _did_you_mean(given: Any, known: Iterable[str]) -> str:
    known = [name for name in dict.fromkeys(known) if isinstance(name, str)]
    if not isinstance(given, str) or given in known:
        return ""
    return did_you_mean(given.casefold(), known)


def _flow(value: Any, node: Schema) -> str:
    """Format an example as one line of YAML, with keys in the order of the schema."""
    if isinstance(value, list):
        return f"[{', '.join(_flow(each, node_at(node, (0,)) or {}) for each in value)}]"
    if isinstance(value, dict):
        keys = [key for key in keys_of(node) if key in value]
        return "{" + ", ".join(f"{key}: {_flow(value[key], node_at(node, (key,)) or {})}" for key in keys) + "}"
    return str(value)


def show(value: Any) -> str:
    """Return a shortened form of a value that the user will still recognise."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return f"a mapping with {', '.join(map(repr, list(value)[:5]))}" if value else "an empty mapping"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def describe(node: Schema) -> str:
    """Describe the values that a node of the schema allows; empty if it allows anything."""
    return " or ".join(dict.fromkeys(text for option in options(node) if (text := _describe_one(option))))


def _describe_one(node: Schema) -> str:
    kind = node.get("type")
    if "const" in node:
        return str(node["const"])
    if "enum" in node:
        return ", ".join(map(str, node["enum"]))
    if kind in _NUMBERS:
        bounds = [f"{words} {node[bound]}" for bound, words in _BOUNDS.items() if bound in node]
        return " ".join([_NUMBERS[kind], " and ".join(bounds)]).rstrip()
    if kind == "array":
        if "prefixItems" in node:
            return f"a list of {len(node['prefixItems'])}, each {describe(node['prefixItems'][0])}"
        limit = f", at most {node['maxItems']} long" if "maxItems" in node else ""
        return f"a list{', not empty' if node.get('minItems') else ''}{limit}"
    if kind == "object":
        keys = keys_of(node)
        return f"a mapping with the keys {', '.join(keys)}" if keys else "a mapping"
    text = "text, not empty" if node.get("minLength") else "text"
    text += f", at most {node['maxLength']} long" if "maxLength" in node else ""
    names = {"string": text, "boolean": "true, false", "null": "null"}
    return names.get(str(kind), "")
