"""The JSON Schema of a stream file, for editors and for messages that list the allowed values.

pydantic generates most of it; the values that the models accept through validators are added here: bare names, the existing
presets and metrics, the aliases of ``bottleneck``, layer numbers.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

from pydantic import AliasChoices, BaseModel

from continual_petl.added import added
from continual_petl.banks.config.choice import BankChoice
from continual_petl.banks.config.presets import FUSION, PRESETS
from continual_petl.banks.config.spec import Modification
from continual_petl.kind_registry import kind_names, kinds
from continual_petl.streams.schema.data_spec import AS_LIST, AS_MAPPING, AS_ROWS, AS_SOURCE, AS_TEXT
from continual_petl.streams.schema.stream_spec import StreamSpec

Schema = dict[str, Any]


def json_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of a stream file."""
    return copy.deepcopy(cached_schema())


def cached_schema() -> Schema:
    """Return a shared copy of the schema, which must not be modified."""
    return _schema_with(kind_names())


@cache
def _schema_with(names: tuple[str, ...]) -> Schema:
    """Return the schema; ``names``, those of all kinds, grow if a kind is registered."""
    schema = StreamSpec.model_json_schema()
    definitions = schema["$defs"]
    for model in (BankChoice, Modification):
        _add_other_names(model, definitions[model.__name__])
    bank = definitions["BankChoice"]
    bank["properties"]["preset"]["anyOf"][0]["enum"] = [*PRESETS, FUSION]
    bank["properties"]["layers"]["anyOf"].insert(1, {"minimum": 0, "type": "integer"})
    definitions["BankChoice"] = {
        "description": bank.pop("description"),
        "anyOf": [{"enum": list(PRESETS), "type": "string"}, bank],
    }
    backbone = definitions["BackboneSpec"]
    definitions["BackboneSpec"] = {
        "description": backbone.pop("description"),
        "anyOf": [{"minLength": 1, "type": "string"}, backbone],
    }
    for name in ("RoutingSpec", "TaskRoutingSpec"):
        routing = definitions[name]
        statistics = routing["properties"]["statistics"]
        bare = statistics.get("anyOf", [statistics])[0]
        words = bare.get("enum") or [bare["const"]]
        definitions[name] = {
            "description": routing.pop("description"),
            "anyOf": [{"enum": words, "type": "string"}, routing],
        }
    task = definitions["TaskSpec"]["properties"]
    task["kind_settings"]["anyOf"][0] = {
        "type": "object",
        "properties": _settings_of_kinds(),
        "additionalProperties": False,
    }
    metrics = dict.fromkeys(metric for kind in kinds() for metric in kind.metrics) | dict.fromkeys(added("metrics"))
    task["metric"]["anyOf"][0]["enum"] = list(metrics)
    for override in definitions["TrainingOverride"]["properties"].values():
        del override["default"]  # the stream's setting applies to omitted keys
    schema["properties"]["bank"]["default"] = StreamSpec.model_fields["bank"].default.preset
    schema["properties"]["routing"]["default"] = StreamSpec.model_fields["routing"].default.statistics
    for holder in (schema["properties"], task):
        for node in holder.values():
            if "$ref" in node and node["$ref"].endswith(
                ("TrainingSpec", "ColumnsSpec", "LimitsSpec", "GenerationSpec")
            ):
                node.pop("default", None)  # every key below has its own default
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _settings_of_kinds() -> Schema:
    """Return the schemas of the settings that only some kinds have, by key."""
    found: dict[str, tuple[Schema, list[str]]] = {}
    for kind in kinds():
        if kind.own_settings is not None:
            for key, node in kind.own_settings.model_json_schema()["properties"].items():
                found.setdefault(key, (node, []))[1].append(kind.name)
    return {
        key: node | {"description": f"{node['description']} ({', '.join(names)})"}
        for key, (node, names) in found.items()
    }


@cache
def schema_of(spec: type[BaseModel]) -> Schema:
    """Return the JSON Schema of any specification, for `node_at`; it must not be modified."""
    if spec is StreamSpec:
        return cached_schema()
    if spec.__name__ in (known := cached_schema()["$defs"]):
        found: Schema = known[spec.__name__]
        return found
    schema = spec.model_json_schema()
    inlined: Schema = _inlined(schema, schema.get("$defs", {}))
    return inlined


def _inlined(node: Any, definitions: Schema) -> Any:
    if isinstance(node, list):
        return [_inlined(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[1]
        return node if name in cached_schema()["$defs"] else _inlined(definitions[name], definitions)
    return {key: _inlined(below, definitions) for key, below in node.items() if key != "$defs"}


def _add_other_names(model: type[BaseModel], definition: Schema) -> None:
    for name, info in model.model_fields.items():
        if isinstance(info.validation_alias, AliasChoices):
            for other in info.validation_alias.choices:
                if other != name:
                    text = f"Another name for {name}."
                    definition["properties"][other] = definition["properties"][name] | {
                        "description": text,
                        "title": str(other),
                    }


def follow(node: Schema) -> Schema:
    """Return the target of a reference; any other node unchanged."""
    if "$ref" not in node:
        return node
    target: Schema = cached_schema()["$defs"][node["$ref"].rsplit("/", 1)[1]]
    return target | {key: value for key, value in node.items() if key != "$ref"}


def options(node: Schema) -> list[Schema]:
    """Return the alternatives of a node, or the node alone if it has none."""
    node = follow(node)
    parts = node.get("anyOf") or node.get("oneOf")
    return [option for part in parts for option in options(part)] if parts else [node]


_SHAPES = {AS_TEXT: "string", AS_LIST: "array", AS_MAPPING: "object", AS_ROWS: "object", AS_SOURCE: "object"}


def node_at(root: Schema, loc: tuple[str | int, ...]) -> Schema | None:
    """Return the node for the location ``loc`` of a validation error, None for an unknown key.

    Args:
        root: the node where ``loc`` begins.
        loc: keys and indices, with union tags between them.
    """
    nodes = [root]
    for part in loc:
        found = [option for node in nodes for option in options(node)]
        if part in _SHAPES:
            nodes = [node for node in found if node.get("type") == _SHAPES[str(part)]]
            if part in (AS_ROWS, AS_SOURCE):
                nodes = [node for node in nodes if ("properties" in node) == (part == AS_SOURCE)]
        else:
            nodes = [below for node in found if (below := _below(node, part)) is not None]
    if not nodes:
        return None
    return follow(nodes[0]) if len(nodes) == 1 else {"anyOf": nodes}


def _below(node: Schema, part: str | int) -> Schema | None:
    below: Any
    if isinstance(part, int):
        rows = node.get("prefixItems")
        below = rows[part] if rows and part < len(rows) else node.get("items")
    else:
        below = node.get("properties", {}).get(part, node.get("additionalProperties"))
    return below if isinstance(below, dict) else None


def keys_of(node: Schema, *, other_names: bool = False) -> list[str]:
    """Return the allowed keys of a mapping at ``node``; aliases of keys are included only if requested."""
    found: dict[str, None] = {}
    for option in options(node):
        names = option.get("propertyNames", {}).get("enum", [])
        own = [
            name
            for name, below in option.get("properties", {}).items()
            if other_names or not below.get("description", "").startswith("Another name for")
        ]
        found |= dict.fromkeys([*own, *names])
    return list(found)
