"""Write a stream as YAML, including all defaults, so that reading it returns an equal stream."""

from __future__ import annotations

from typing import Any

import yaml
from pydantic import BaseModel

from continual_petl.errors import InputError
from continual_petl.spelling import half_character
from continual_petl.streams.schema.consistency import KeyPath, contradictions
from continual_petl.streams.schema.kind_options import without_idle_options
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.schema.training_spec import TrainingOverride, TrainingSpec
from continual_petl.streams.stream_file.key_locations import dotted
from continual_petl.streams.stream_file.size_limits import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_ENTRIES,
    MAX_TASKS,
    check_number,
)
from continual_petl.streams.stream_file.yaml_nodes import CORE


class _Dumper(yaml.SafeDumper):
    """Quotes strings that YAML 1.1 or 1.2 would read as something else."""

    # PyYAML treats these as line ends when writing but, except in double quotes, not when reading.
    breaks = frozenset("\x85\u2028\u2029")
    """Characters that are only written in double quotes."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = '"' if dumper.breaks.intersection(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
for _name, (_pattern, _first) in CORE.items():
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", _pattern, _first)


class _OneLine(_Dumper):
    """Also writes texts of several lines on one line, in double quotes."""

    breaks = _Dumper.breaks | {"\n"}


def dump_stream(spec: StreamSpec) -> str:
    """Return ``spec`` as YAML; `load_stream` reads it back as an equal `StreamSpec`.

    Raises:
        InputError: if ``trainer`` or rows from Python hold a value that YAML cannot represent, or more data than a
            stream file may hold.
    """
    _check_size("tasks", len(spec.tasks), MAX_TASKS)
    tree = _plain(spec, ())
    _check_size("entries", _num_entries(tree), MAX_ENTRIES)
    text: str = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)
    _check_size("bytes", len(text.encode()), MAX_BYTES)
    return text


def inline(value: Any) -> str:
    """Return plain data as YAML on one line.

    Example:
        >>> inline({"text": "a: b", "label": ["no", "12"]})
        "{text: 'a: b', label: ['no', '12']}"
    """
    written: str = yaml.dump(
        [value], Dumper=_OneLine, sort_keys=False, allow_unicode=True, default_flow_style=True, width=float("inf")
    )
    return written.strip()[1:-1]


def contradictions_of(spec: StreamSpec) -> list[tuple[KeyPath, str]]:
    """Return the problems that `load_stream` would report for a stream that was put together from parts of other streams."""
    return contradictions(_plain(spec, ()))


def without_unused_settings(spec: StreamSpec) -> StreamSpec:
    """Drop the settings of `training` that no task uses any more, after the tasks of a stream have changed."""
    unread = {str(path[1]) for path, _ in contradictions_of(spec) if path[0] == "training"}
    defaults = {key: TrainingSpec.model_fields[key].default for key in unread}
    return spec.model_copy(update={"training": spec.training.model_copy(update=defaults)}) if unread else spec


def _check_size(what: str, size: int, bound: int) -> None:
    if size > bound:
        raise InputError(
            f"the stream has {size} {what} when written as a file, but at most {bound} can be read again: put its rows into "
            "data files"
        )


def _num_entries(tree: Any) -> int:
    below = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return 1 + sum(map(_num_entries, below))


def _check_scalar(value: Any, path: tuple[str | int, ...]) -> None:
    if isinstance(value, str) and (half := half_character(value)) is not None:
        raise InputError(
            f"key {dotted(path)}: the text holds {half}, half of a surrogate pair: write the complete character"
        )
    if type(value) is int:
        try:
            check_number(value)
        except ValueError as error:
            raise InputError(f"key {dotted(path)}: the value is {error}: give a smaller number, or a string") from None


def _plain(value: Any, path: tuple[str | int, ...]) -> Any:
    if len(path) > MAX_DEPTH:
        raise InputError(f"key {dotted(path)}: nested more than {MAX_DEPTH} levels deep, so it could not be read back")
    if isinstance(value, TrainingOverride):
        return _plain(value.given(), path)
    if isinstance(value, BaseModel):
        # A null that is also the default need not be written.
        fields = {name: (getattr(value, name), info.default) for name, info in type(value).model_fields.items()}
        fields |= {name: (below, None) for name, below in (value.__pydantic_extra__ or {}).items()}
        tree = {n: _plain(v, (*path, n)) for n, (v, default) in fields.items() if not (v is None and default is None)}
        return without_idle_options(value.kind, tree) if isinstance(value, TaskSpec) else tree
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for key in value:
            _check_scalar(key, path)
        return {key: _plain(below, (*path, key)) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(below, (*path, number)) for number, below in enumerate(value)]
    if value is None or type(value) in (str, int, float, bool):
        _check_scalar(value, path)
        return value
    raise InputError(
        f"key {dotted(path)}: a {type(value).__name__} cannot be written into a stream file; use text, numbers, true, "
        "false, null, lists, and mappings whose keys are text"
    )
