"""Field types with special rules: names that become folders, and labels."""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from continual_petl.kind import MAX_OPTIONS
from continual_petl.streams.schema.data_spec import AS_LIST, AS_TEXT, Text

_PATTERN = "^[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9_-])?$"
_WINDOWS_NAMES = {"CON", "PRN", "AUX", "NUL"} | {f"{port}{n}" for port in ("COM", "LPT") for n in range(10)}


def _path_safe(name: str) -> str:
    """Accept a name that is a valid file name on every system, since it becomes a folder of the run."""
    if re.fullmatch(_PATTERN[1:-1], name) is None:
        raise ValueError(
            f"{name!r} cannot be the name of a folder on every system: use 1 to 64 letters a-z, digits, '.', '_' and "
            "'-', beginning with a letter or digit and not ending in '.'"
        )
    if name.split(".")[0].upper() in _WINDOWS_NAMES:
        raise ValueError(f"{name!r} is a reserved device name on Windows, so choose another name")
    return name


Name = Annotated[str, Field(json_schema_extra={"pattern": _PATTERN}), AfterValidator(_path_safe)]


def _options(options: tuple[str, ...]) -> tuple[str, ...]:
    if len(options) < 2:
        raise ValueError(f"a choice needs at least two options, got {len(options)}")
    for option, number in Counter(options).items():
        if not option.strip():
            raise ValueError(f"the option {option!r} is blank; every option must contain text")
        if number > 1:
            raise ValueError(f"the option {option!r} is listed more than once")
    return options


def _labels_shape(value: Any) -> str | None:
    return AS_TEXT if isinstance(value, str) else AS_LIST if isinstance(value, list | tuple) else None


def label_name(value: Any) -> Any:
    """Return an integer as the name that it stands for, and anything else as it is."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _distinct(labels: tuple[str, ...]) -> tuple[str, ...]:
    if len(labels) < 2:
        raise ValueError(f"at least two labels are needed, got {len(labels)}")
    if twice := sorted(label for label, count in Counter(labels).items() if count > 1):
        raise ValueError(f"the label {twice[0]!r} is listed more than once")
    return labels


_LabelName = Annotated[Text, BeforeValidator(label_name, json_schema_input_type=str | int)]
_LabelNames = Annotated[tuple[_LabelName, ...], AfterValidator(_distinct)]
Options: TypeAlias = Annotated[tuple[_LabelName, ...], Field(max_length=MAX_OPTIONS), AfterValidator(_options)]
"""The texts to choose from in a generative task."""
Normalise = Literal["none", "tokens", "characters"]
Labels: TypeAlias = Annotated[
    Annotated[Text, Tag(AS_TEXT)] | Annotated[_LabelNames, Tag(AS_LIST)],
    Discriminator(
        _labels_shape,
        custom_error_type="shape",
        custom_error_message="must be a list of label names, or the path of a JSON file that holds such a list",
    ),
]
