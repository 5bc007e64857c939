"""How the tags of a token-classification task mark entities, as written in a stream file."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, Field, model_validator

from continual_petl._strict_model import StrictModel
from continual_petl.heads.tag_scheme import Position, Scheme
from continual_petl.streams.schema.data_spec import Text
from continual_petl.streams.schema.field_types import label_name

_OTHER_NAMES = {
    "BIO": "IOB2",
    "BIO2": "IOB2",
    "BIO1": "IOB1",
    "BIOES": "IOBES",
    "BIESO": "IOBES",
    "BILUO": "BILOU",
    "BIOUL": "BILOU",
    "BMESO": "BMES",
    "BMEOS": "BMES",
    "BMEOW": "BMEWO",
    "NONE": "none",
}


def _scheme(value: Any) -> Any:
    """Return the usual name of a scheme, from any of its names in any case; IOB alone may be IOB1 or IOB2."""
    if not isinstance(value, str):
        return value
    name = _OTHER_NAMES.get(value.upper(), value.upper())
    if name not in get_args(Scheme):
        raise ValueError(f"got {value!r}; allowed: {', '.join(get_args(Scheme))}")
    return name


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


_Tag = Annotated[Text, BeforeValidator(label_name, json_schema_input_type=str | int)]
_Outside = Annotated[
    Annotated[tuple[_Tag, ...], Field(min_length=1)],
    BeforeValidator(_as_list, json_schema_input_type=str | int | list[str | int]),
]


class TagsSpec(StrictModel):
    """How tags mark entities (token-classification). What is left out is recognised from all tags of the task."""

    scheme: Annotated[Scheme, BeforeValidator(_scheme, json_schema_input_type=str)] | None = None
    """The scheme of the tags. IO: every tag but those outside is the type of an entity. none: the tags mark no entities, as
    with parts of speech; metric is then accuracy."""
    outside: _Outside | None = None
    """The tag, or list of tags, of words outside of entities."""
    position: Position | None = None
    """Where the letter is written: before the type of the entity (B-PER) or after it (PER-B)."""

    @model_validator(mode="after")
    def _is_used(self) -> TagsSpec:
        if self.scheme == "none" and (self.outside is not None or self.position is not None):
            raise ValueError("scheme none has no letters and no tags outside of entities: remove outside and position")
        return self
