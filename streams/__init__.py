"""Task streams: the stream file, data sources, tokenised batches.

Everything public can be imported from here and is loaded on first use, so that checking a stream file stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from continual_petl._lazy import lazy_names

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

__getattr__, __dir__, __all__ = lazy_names(__name__)
