"""Base class of every user-written specification: immutable, strict about unknown keys."""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema


class FrozenModel(BaseModel):
    """A pydantic model that rejects unknown keys, NaN and infinities, and never changes after validation.

    A docstring under a key is its description in the JSON Schema. pydantic's own ``use_attribute_docstrings`` would read the
    source of every class on import, which takes a quarter of the startup time of ``continual-petl list``; here the source is
    only read when a schema is generated.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema with the docstrings of the keys as descriptions."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for owner in reversed(cls.__mro__):
            if issubclass(owner, FrozenModel) and owner is not FrozenModel:
                for key, text in _key_docstrings(owner).items():
                    properties[key]["description"] = text
        return schema


def _key_docstrings(owner: type) -> dict[str, str]:
    """Return the string literal that follows each annotated key of a class."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(definition, ast.ClassDef)
    return {
        key.target.id: inspect.cleandoc(text.value.value)
        for key, text in pairwise(definition.body)
        if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }
