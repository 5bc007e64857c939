"""Streams generated from the schema: mostly valid keys, sometimes with values of a wrong type.

Draws come from a `Random`, which may be Hypothesis's own, so that Hypothesis can shrink its findings.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

import yaml

from continual_petl.banks.config.presets import PRESETS
from continual_petl.streams.stream_file.json_schema import Schema, options
from tests.fuzz.dictionary import ODD_NUMBERS, ODD_TEXTS, node_of

_PLAIN = ("a", "b", "text", "label", "x.csv", "data/train.jsonl", "minilm", "yes", "no", "Zürich")


def document(draw: Random, name: str = "StreamSpec") -> bytes:
    """Return a file with a stream, or another definition of the schema, in one of YAML's styles or as JSON."""
    wrong = draw.choice((0.0, 0.0, 0.02, 0.2))
    many = draw.choice((0.05, 0.1, 0.3, 0.9))
    tree = value(node_of(name), draw, wrong, many)
    try:
        if draw.random() < 0.3:
            text = json.dumps(tree, ensure_ascii=draw.random() < 0.5)
        else:
            flow = draw.choice((None, True, False))
            text = yaml.safe_dump(
                tree,
                default_flow_style=flow,
                allow_unicode=draw.random() < 0.5,
                sort_keys=False,
                width=draw.choice((20, 110)),
            )
    except (ValueError, yaml.YAMLError):  # a number that has too many digits to be written
        text = "a: 1"
    return text.encode("utf-8", "surrogatepass")


def value(node: Schema, draw: Random, wrong: float, many: float, depth: int = 0) -> Any:
    """Return plain data that fits a node of the schema, or with probability ``wrong`` does not."""
    if draw.random() < wrong or depth > 12:
        return odd(draw, depth)
    option = draw.choice(options(node))
    if "const" in option:
        return option["const"]
    if "enum" in option:
        return draw.choice(option["enum"])
    match option.get("type"):
        case "object":
            return _mapping(option, draw, wrong, many, depth)
        case "array":
            rows = option.get("prefixItems")
            if rows:
                return [value(row, draw, wrong, many, depth + 1) for row in rows]
            size = draw.randint(option.get("minItems", 0), 3)
            return [value(option.get("items", {}), draw, wrong, many, depth + 1) for _ in range(size)]
        case "integer":
            return draw.choice((1, 2, 4, 8, 32))
        case "number":
            return draw.choice((0.1, 0.5, 0.9, 1e-3, 1))
        case "boolean":
            return draw.random() < 0.5
        case "string":
            return draw.choice(ODD_TEXTS if draw.random() < wrong else _PLAIN)
        case "null":
            return None
    return odd(draw, depth)


def _mapping(option: Schema, draw: Random, wrong: float, many: float, depth: int) -> dict[str, Any]:
    properties, required = option.get("properties", {}), option.get("required", ())
    result = {
        key: _special(key, draw) or value(below, draw, wrong, many, depth + 1)
        for key, below in properties.items()
        if (key in required and draw.random() >= wrong) or draw.random() < many
    }
    free = option.get("additionalProperties")
    if isinstance(free, dict) or free is True:
        names = option.get("propertyNames", {}).get("enum") or [*_PLAIN, "devices", "accelerator"]
        for name in draw.sample(names, k=min(2, len(names))):
            result[name] = value(free if isinstance(free, dict) else {}, draw, wrong, many, depth + 1)
    if draw.random() < wrong:
        result[draw.choice(ODD_TEXTS)] = odd(draw, depth)
    return result


def _special(key: str, draw: Random) -> Any:
    """Return a value that random draws would seldom hit, such as an existing preset; None for most keys."""
    if draw.random() < 0.2:
        return None
    if key == "name":
        return f"t{draw.randrange(10**6)}"
    if key in ("bank", "preset"):
        return draw.choice(list(PRESETS))
    return "all" if key == "layers" else None


def odd(draw: Random, depth: int = 0) -> Any:
    """Return a value that is seldom valid: a boundary number, an unusual text, or nested lists and mappings."""
    match draw.randrange(10):
        case 0 | 1:
            return draw.choice(ODD_TEXTS)
        case 2:
            return draw.choice(ODD_NUMBERS)
        case 3:
            return draw.choice((0, -1, 2**63, -(2**64), 10**400, 1 << 20000))
        case 4:
            return draw.choice((float("inf"), float("-inf"), float("nan"), -0.0, 1e308, 5e-324))
        case 5:
            return draw.choice((None, True, False))
        case 6 if depth < 12:
            return [odd(draw, depth + 1) for _ in range(draw.randrange(4))]
        case 7 if depth < 12:
            return {draw.choice(ODD_TEXTS): odd(draw, depth + 1) for _ in range(draw.randrange(4))}
        case 8:
            deep: Any = 1
            for _ in range(draw.choice((5, 38, 45))):
                deep = [deep] if draw.random() < 0.5 else {"a": deep}
            return deep
    return draw.choice(_PLAIN)
