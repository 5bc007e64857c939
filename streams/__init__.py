"""Task streams: the stream file, data sources, tokenised batches.

Everything public is reachable from here and imported on first use, so that checking a stream file stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from continual_petl.streams.schema.stream_spec import BackboneSpec as BackboneSpec
    from continual_petl.streams.schema.stream_spec import DataSpec as DataSpec
    from continual_petl.streams.schema.stream_spec import GenerationSpec as GenerationSpec
    from continual_petl.streams.schema.stream_spec import StreamSpec as StreamSpec
    from continual_petl.streams.schema.stream_spec import TaskSpec as TaskSpec
    from continual_petl.streams.schema.stream_spec import TrainingSpec as TrainingSpec
    from continual_petl.streams.stream import TaskStream as TaskStream
    from continual_petl.streams.stream_file.yaml_file import dump_stream as dump_stream
    from continual_petl.streams.stream_file.yaml_file import json_schema as json_schema
    from continual_petl.streams.stream_file.yaml_file import load_stream as load_stream
    from continual_petl.streams.stream_file.yaml_file import load_task as load_task

_HOMES = {
    "BackboneSpec": "schema.stream_spec",
    "DataSpec": "schema.stream_spec",
    "GenerationSpec": "schema.stream_spec",
    "StreamSpec": "schema.stream_spec",
    "TaskSpec": "schema.stream_spec",
    "TrainingSpec": "schema.stream_spec",
    "TaskStream": "stream",
    "dump_stream": "stream_file.yaml_file",
    "json_schema": "stream_file.yaml_file",
    "load_stream": "stream_file.yaml_file",
    "load_task": "stream_file.yaml_file",
}
"""Public name to the module that defines it."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
