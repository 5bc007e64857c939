"""Base class of every user-written specification: immutable, strict about unknown keys; and names checked against a list."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from continual_petl._lazy import FROM_ABOVE
from continual_petl.added import Registry
from continual_petl.errors import InputError, raise_problems

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

TAG = "\ue000"
"""First character of union tags, which pydantic puts among the keys of a validation error; no real key starts with it."""
AS_TEXT, AS_LIST = f"{TAG}text", f"{TAG}list"


class StrictModel(BaseModel):
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
            if issubclass(owner, StrictModel) and owner not in (StrictModel, UserSpec):
                for key, text in _key_docstrings(owner).items():
                    properties[key]["description"] = text
        return schema


class UserSpec(StrictModel):
    """A specification that users write, in a file or in Python: in Python, mistakes are reported as for a file.

    Raises:
        InputError: naming the key, what was found and what is allowed; several mistakes are reported together
            (`StreamFileError`).
    """

    if not TYPE_CHECKING:  # type checkers derive the arguments of each class from its keys

        def __init__(self, /, *unnamed: Any, **given: Any) -> None:
            if unnamed:
                raise InputError(_without_keys(type(self), unnamed[0]))
            with _reported(type(self), given):
                super().__init__(**given)

        # Otherwise pydantic would call it for every mapping inside another specification, and would not see its mistakes.
        __init__.__pydantic_base_init__ = True

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Return the specification for plain data; see pydantic.

        Raises:
            InputError: as the constructor.
        """
        with _reported(cls, obj):
            return super().model_validate(obj, **options)

    @classmethod
    def checked(cls, tree: Any) -> Self:
        """Return the specification for plain data, for code that words the mistakes itself.

        Raises:
            pydantic.ValidationError: with all mistakes.
        """
        return super().model_validate(tree)


@contextmanager
def _reported(spec: type[UserSpec], given: Any) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        found = FROM_ABOVE["mistakes"](spec, given, error)
    else:
        return
    raise_problems([text for _, text in found], [key for key, _ in found])


def _without_keys(spec: type[UserSpec], given: Any) -> str:
    """Return the message about a value given without its key."""
    needed = [key for key, field in spec.model_fields.items() if field.is_required()] or [*spec.model_fields][:2]
    example = f"{spec.__name__}({', '.join(f'{key}=...' for key in needed)})"
    if isinstance(given, Mapping):
        return f"{spec.__name__}: got a mapping; give its values by key: {spec.__name__}(**mapping), which is {example}"
    return f"{spec.__name__}: got {given!r:.80} without a key; give each value by its key, such as {example}"


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


UNKNOWN_NAME = "unknown_name"
"""The type of pydantic's error about a name that is not known."""


class KnownName:
    """The annotation of a name in a specification, checked like a `Literal` of all names that are known at that time.

    Args:
        registry: knows these names.
        refuse: is called first with a name that is not known, and may raise an error of its own.
    """

    def __init__(self, registry: Registry[Any], refuse: Callable[[object], None] = lambda value: None) -> None:
        self._registry, self._refuse = registry, refuse

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return how pydantic checks and writes a name."""
        return core_schema.no_info_plain_validator_function(
            self._checked, serialization=core_schema.to_string_ser_schema()
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the names for the JSON Schema."""
        return {"enum": list(self._registry.names()), "type": "string"}

    def _checked(self, value: object) -> str:
        names = self._registry.names()
        if isinstance(value, str) and value in names:
            return value
        self._refuse(value)
        raise PydanticCustomError(UNKNOWN_NAME, "Input should be one of {names}", {"names": ", ".join(names)})
