"""Schema of a stream file's ``backbone`` section."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from continual_petl._strict_model import UserSpec
from continual_petl.backbones.anatomy import Pooling
from continual_petl.streams.schema.data_spec import Revision, Text
from continual_petl.streams.schema.training_spec import Bool, Int


class BackboneSpec(UserSpec):
    """The frozen pre-trained transformer. A bare name, ``backbone: minilm``, means ``{name: minilm}``."""

    name: Annotated[Text, Field(examples=["minilm"])]
    """The packaged minilm, the id of a model on the Hub, or a path that begins with ./, ../, ~ or /."""
    revision: Revision | None = None
    """Commit, tag or branch of a Hub model."""
    max_length: Annotated[Int, Field(ge=4)] | None = None
    """Maximum tokens per row; longer rows are truncated; null means the maximum that the backbone supports."""
    pooling: Pooling | None = None
    """How token states are pooled into one vector; null means the default of the model's family."""
    attention: Literal["auto", "eager", "sdpa"] = "auto"
    """Attention kernel. auto chooses one for training and one for prediction: the fastest on the device or, in an existing
    run, the ones that its first task used. A named kernel is used for both."""
    remote_code: Bool = False
    """Whether to execute Python code included with the model. It can do anything that you can: read it first."""
    quantize: Literal["int8", "nf4", "int4"] | None = None
    """Keep the weights of the backbone's linear layers as 8-bit integers (int8) or 4-bit codes (nf4), a quarter or an eighth
    of their size in fp32, or as 4-bit integers, one per byte (int4). Needs the extra quantize; banks are not quantised. null
    keeps them as they are in the checkpoint."""

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_serializer(mode="wrap")
    def _omit_new_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Streams written before this key existed must stay unchanged, byte for byte.
        return {key: value for key, value in handler(self).items() if key != "quantize" or value is not None}
