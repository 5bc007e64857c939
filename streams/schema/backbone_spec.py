"""Schema of a stream file's ``backbone`` section."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from continual_petl._frozen import FrozenModel
from continual_petl.backbones.anatomy import Pooling
from continual_petl.streams.schema.data_spec import Revision, Text
from continual_petl.streams.schema.training_spec import Bool, Int


class BackboneSpec(FrozenModel):
    """The frozen pre-trained transformer. A bare name, ``backbone: minilm``, means ``{name: minilm}``."""

    name: Annotated[Text, Field(examples=["minilm"])]
    """minilm (the packaged one), the id of a model on the Hub, or a path that begins with ./, ../, ~ or /."""
    revision: Revision | None = None
    """Commit, tag or branch of a Hub model."""
    max_length: Annotated[Int, Field(ge=4)] | None = None
    """Tokens after which a row is cut; null means as many as the backbone takes."""
    pooling: Pooling | None = None
    """How token states become one vector; null means the default of the model's family."""
    attention: Literal["auto", "eager", "sdpa"] = "auto"
    """Attention kernel; auto is the one that trains fastest on the device, and in an existing run that of its first task."""
    remote_code: Bool = False
    """Whether Python code that comes with the model is executed. It can do whatever you can: read it first."""

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value
