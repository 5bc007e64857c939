"""Sealed JSON: every file of the chain contains a digest of its own content, its seal, which the next entry names.

The seal is computed from the file's content, not from the parsed model, so a certificate keeps its seal when keys are
added to the schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from continual_petl.digests import combined_digest
from continual_petl.errors import StoreError
from continual_petl.store.files.atomic import write_json
from continual_petl.store.files.reading import MAX_JSON_BYTES, as_written, read_file

_Record = TypeVar("_Record", bound=BaseModel)
SEAL = "seal"
VERSION = "format_version"


def seal_of(content: Mapping[str, Any]) -> str:
    """Return the digest of JSON values, leaving out their seal."""
    return combined_digest({key: value for key, value in content.items() if key != SEAL})


def write_sealed(path: Path, content: Mapping[str, Any]) -> str:
    """Write JSON values with their seal, and return the seal."""
    seal = seal_of(content)
    write_json(path, {**content, SEAL: seal})
    return seal


def read_sealed(path: Path, version: int, what: str) -> tuple[dict[str, Any], str]:
    """Return the content of a sealed file, and its seal.

    Args:
        path: the file.
        version: the supported format version.
        what: what was written, for the message "edited after ... was written".

    Raises:
        FileNotFoundError: if there is none.
        StoreError: if it was damaged or edited, or was written by an incompatible release.
    """
    raw = as_written(read_file(path, MAX_JSON_BYTES), path)
    check_version(raw, path, version)
    seal = raw.pop(SEAL, None)
    try:
        expected = seal_of(raw)
    except ValueError as error:  # NaN and the like, which no store writes
        raise StoreError(f"{path}: not JSON as a store writes it ({error}); the file is damaged") from error
    if seal != expected:
        raise StoreError(
            f"{path}: its content does not match its seal; it was edited after {what} was written. Restore the file "
            "from a copy: its content can no longer be trusted."
        )
    return raw, expected


def write_record(path: Path, record: BaseModel) -> str:
    """Write a record, which has a ``format_version``, with its seal, and return the seal."""
    return write_sealed(path, record.model_dump(mode="json"))


def read_record(path: Path, form: type[_Record], what: str = "it") -> tuple[_Record, str]:
    """Return the record in a sealed file, and its seal; see `read_sealed`.

    Args:
        path: the file.
        form: the class of the record; its ``format_version`` is the one that this release reads.
        what: see `read_sealed`.

    Raises:
        FileNotFoundError: if there is none.
        StoreError: as `read_sealed`, or if the content is no such record.
    """
    raw, seal = read_sealed(path, form.model_fields[VERSION].default, what)
    try:
        return form.model_validate(raw), seal
    except ValidationError as error:
        raise invalid(path, error) from error


def check_version(raw: Mapping[str, Any], path: Path, version: int) -> None:
    """Raise `StoreError` for a format version that this release does not read."""
    format_version = raw.get(VERSION)
    if type(format_version) is int and format_version == version:
        return
    newer = isinstance(format_version, int) and format_version > version
    raise StoreError(
        f"{path}: format version {str(format_version)[:40]}, this release reads {version}. "
        + ("A newer release wrote it: read it with that release." if newer else "The file is damaged or was edited.")
    )


def invalid(path: Path | str, error: ValidationError) -> StoreError:
    """Return the `StoreError` for content that does not match its schema."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    location = ".".join(map(str, first["loc"])) or "the whole file"
    return StoreError(f"{path}: {location}: {first['msg']}; the file is damaged or was edited")
