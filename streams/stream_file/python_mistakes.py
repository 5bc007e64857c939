"""Words the mistakes in the arguments of a specification in Python as those in a stream file, without a file and lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from continual_petl._strict_model import UserSpec
from continual_petl.streams.schema.consistency import KeyPath, contradictions
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.stream_file.json_schema import schema_of
from continual_petl.streams.stream_file.key_locations import at_key
from continual_petl.streams.stream_file.size_limits import MAX_PROBLEMS, shorten
from continual_petl.streams.stream_file.wording import word_errors


def mistakes(spec: type[UserSpec], given: Any, error: ValidationError) -> list[tuple[KeyPath, str]]:
    """Return the key and the paragraph of every mistake.

    Args:
        spec: the specification.
        given: its arguments, or the plain data that was validated.
        error: what pydantic found in them.
    """
    found = list(_mistakes(spec, given, error))
    if len(found) > MAX_PROBLEMS:
        found[MAX_PROBLEMS:] = [((), f"there are more mistakes; these are the first {MAX_PROBLEMS}")]
    return [(key, shorten(f"{spec.__name__}: {f'{at_key(key, given)}: ' if key else ''}{text}")) for key, text in found]


def _mistakes(spec: type[UserSpec], given: Any, error: ValidationError) -> Iterator[tuple[KeyPath, str]]:
    if spec is StreamSpec and isinstance(given, Mapping):
        yield from contradictions(given)
    yield from word_errors(error, schema_of(spec))
