"""The JSON Schema agrees with the pydantic models."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from continual_petl.banks.config.presets import FUSION, PRESETS
from continual_petl.errors import InputError
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.stream_file.yaml_file import json_schema

# jsonschema has no type hints; imported this way, it is `Any` to a type checker.
JSONSCHEMA: Any = importlib.import_module("jsonschema")
TASK = {"name": "a", "kind": "classification", "data": "a.csv"}


def _errors(stream: Any) -> list[Any]:
    return list(JSONSCHEMA.Draft202012Validator(json_schema()).iter_errors(stream))


def test_schema_is_valid() -> None:
    JSONSCHEMA.Draft202012Validator.check_schema(json_schema())


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"bank": "lora"},
        {"bank": {"preset": "lora", "rank": 4, "layers": 3}},
        {"backbone": {"name": "x", "max_length": None, "remote_code": True}},
        {"bank": {"modifications": [{"form": "additive", "modifies": "bias"}] * 64}},
        {"tasks": [TASK, TASK | {"name": "b", "bank": {"start_from": "a"}}]},
        {"training": {"schedule": {"name": "cosine_with_restarts", "num_cycles": 2}}},
        {"tasks": [TASK | {"training": {"schedule": "polynomial"}}]},
        {"tasks": [TASK | {"data": {"train": [{"text": "a", "label": 1}]}, "labels": [1, "b"]}]},
        {"tasks": [TASK | {"data": {"path": "csv", "data_files": {"train": ["a", "b"]}}, "training": {"epochs": 1}}]},
    ],
)
def test_schema_accepts_what_the_models_accept(more: dict[str, Any]) -> None:
    stream = {"name": "s", "backbone": "minilm", "tasks": [TASK]} | more
    StreamSpec.model_validate(stream)
    assert not _errors(stream)


@pytest.mark.parametrize(
    "more",
    [
        {"name": "a/b"},
        {"bank": "houlsbee"},
        {"bank": {"preset": "houlsby", "depth": 101}},
        {"bank": {"preset": "houlsby", "bottleneck": 2**20 + 1}},
        {"bank": {"modifications": [{"form": "additive", "modifies": "bias"}] * 65}},
        {"bank": {"preset": "lora", "start_from": "a" * 65}},
        {"backbone": {"name": "x", "remote_code": "yes"}},
        {"epochs": 3},
        {"training": {"epochs": 0}},
        {"training": {"schedule": "greedy"}},
        {"training": {"schedule": {"name": "cosine", "power": 0}}},
        {"tasks": []},
        {"tasks": [TASK | {"data": {"trian": []}}]},
        {"tasks": [TASK | {"metric": "f2"}]},
    ],
)
def test_schema_refuses_what_the_models_refuse(more: dict[str, Any]) -> None:
    stream = {"name": "s", "backbone": "minilm", "tasks": [TASK]} | more
    with pytest.raises(InputError, match="StreamSpec: key "):
        StreamSpec.model_validate(stream)
    assert _errors(stream)


def test_every_key_is_described_and_presets_are_listed() -> None:
    schema = json_schema()
    assert schema["$defs"]["BankChoice"]["anyOf"][0]["enum"] == list(PRESETS)
    # A bank cannot be given as the name ``fusion`` alone, since the tasks to fuse are needed too.
    properties = schema["$defs"]["BankChoice"]["anyOf"][1]["properties"]
    assert properties["preset"]["anyOf"][0]["enum"] == [*PRESETS, FUSION]
    for name, definition in [("stream", schema), *schema["$defs"].items()]:
        assert definition["description"], name
        for part in definition.get("anyOf", [definition]):
            for key, node in part.get("properties", {}).items():
                assert "description" in node or "$ref" in node, (name, key)


def test_schema_returns_a_copy() -> None:
    json_schema()["properties"].clear()
    assert json_schema()["properties"]
