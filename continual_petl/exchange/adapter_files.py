"""The files of an adapter: how tensors are written, and JSON and tensors of limited size read, which are never executed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from continual_petl._strict_model import StrictModel
from continual_petl.errors import InputError, StoreError
from continual_petl.exchange.pickled import read_pickled
from continual_petl.exchange.subject import Subject
from continual_petl.heads.linear import LinearHead
from continual_petl.kind_registry import kind_of
from continual_petl.store.certificate.tensor_file import read_tensors
from continual_petl.store.certificate.values import as_tensors
from continual_petl.store.files.reading import parse_json, read_file
from continual_petl.streams.reader.json_records import unrepeated

CONFIG = "adapter_config.json"
MAX_CONFIG_BYTES = 2**20
MAX_TENSOR_BYTES = 4 * 2**30
MAX_TENSORS = 50_000
MAX_TEXT = 1000
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Size = Annotated[int, Field(strict=True, ge=1, le=2**20)]
Share = Annotated[float, Field(ge=0, lt=1)]
_Options = TypeVar("_Options", bound=StrictModel)


@dataclass(frozen=True)
class Adapter:
    """The content of an adapter's files: its configuration, and tensors by their paths in the other library's model."""

    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class AdapterFiles:
    """The content of an adapter's folder; tensors are in float32."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    head: dict[str, Tensor]
    """The content of head.safetensors; empty if there is no such file."""
    notes: Mapping[str, str]
    """What an export wrote about the head, in the metadata of the file that contains it: kind, pooling, labels."""
    digests: dict[str, str] = field(default_factory=dict)
    """SHA-256 of every file that was read."""
    copies: dict[str, Tensor] = field(default_factory=dict)
    """The head of a `transformers` class that `adapters` saved, by the names of its tensors."""
    hub_head: dict[str, Any] | None = None
    """The configuration of the head, if it was saved in the format of `adapters`."""


def read_files(root: Path, tensors: str, *more: Path) -> AdapterFiles:
    """Read an adapter's configuration and tensors, and head.safetensors if it is there.

    Args:
        root: the adapter's folder.
        tensors: the name of the file with its tensors.
        more: further files, whose digests are needed.

    Raises:
        InputError: if a file is too large or damaged, or could execute code when it is read.
    """
    digests = digests_of(path for path in (root / CONFIG, root / tensors, root / HEAD, *more) if path.is_file())
    described = root / (HEAD if HEAD in digests else tensors)
    return AdapterFiles(
        folder=root,
        config=read_config(root / CONFIG),
        tensors=read_tensor_file(root / tensors, digests),
        head=read_tensor_file(root / HEAD, digests) if HEAD in digests else {},
        notes=read_metadata(described) if described.suffix == ".safetensors" else {},
        digests=digests,
    )


def digests_of(paths: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of files, by name; sizes are checked before anything is read.

    Raises:
        InputError: if a file is too large, or cannot be read.
    """
    known = {path: MAX_CONFIG_BYTES if path.suffix == ".json" else MAX_TENSOR_BYTES for path in paths}
    for path, limit in known.items():
        if (size := path.stat().st_size) > limit:
            raise InputError(
                f"folder: {path} has {size:,} bytes, but this file of an adapter may have at most {limit:,}: it is damaged, "
                "or not an adapter."
            )
    return {path.name: hashlib.sha256(read_whole(path, limit)).hexdigest() for path, limit in known.items()}


def read_whole(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of a file of limited size; in the Hub's cache, it is a link.

    Raises:
        InputError: if it is larger, not a regular file, or cannot be read.
    """
    try:
        return read_file(path.resolve(), max_bytes)
    except (StoreError, OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise InputError(f"folder: {error}") from error


def read_config(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        InputError: if it is too large, or not a JSON object, or has a key twice.
    """
    content = read_whole(path, MAX_CONFIG_BYTES)
    try:
        config = parse_json(content, str(path))
        json.loads(content, object_pairs_hook=unrepeated)
    except StoreError as error:
        raise InputError(f"folder: {error}") from error
    except ValueError as error:
        raise InputError(f"folder: {path}: {error}, so it is not clear which value counts") from error
    return config


def refused_option(key: str, value: object, why: str) -> InputError:
    """Return the error for an option of an adapter that a bank cannot express."""
    return InputError(f"adapter_config.json: key {key[:200]}: got {repr(value)[:200]}, but {why}.")


def read_options(
    cls: type[_Options],
    content: Mapping[str, Any],
    passive: Collection[str],
    refused: Callable[[str, Any, str], InputError],
    *,
    off: Sequence[Any],
    what: str = "the adapter",
) -> _Options:
    """Return the options that matter; the others must be off, so that nothing that changes what is computed is ignored.

    Args:
        cls: the options that matter.
        content: all options.
        passive: options without effect.
        refused: returns the error for a key, its value and the reason.
        off: what an unknown option may be besides None and False.
        what: what they are options of.

    Raises:
        InputError: if a value is not allowed, or an unknown option is on.
    """
    known = cls.model_fields
    for key, value in content.items():
        if key not in known and key not in passive and value is not None and value is not False and value not in off:
            raise refused(key, value, f"it changes what {what} computes, or is unknown")
    try:
        return cls.model_validate({key: value for key, value in content.items() if key in known})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "config"
        why = first["msg"].removeprefix("Value error, ").replace("Input should", "it should")
        why = "the key is missing" if first["type"] == "missing" else why
        raise refused(where, first.get("input"), f"{why}; the file is damaged, or a bank has no such option") from error


def read_tensor_file(path: Path, digests: Mapping[str, str]) -> dict[str, Tensor]:
    """Return the tensors in a file, in float32; one of torch.save is read without executing anything.

    Args:
        path: the file.
        digests: the SHA-256 of every file.

    Raises:
        InputError: if it is too large or damaged, or contains a tensor that no adapter has.
    """
    if path.suffix != ".safetensors":
        return whole(path, read_pickled(path, read_whole(path, MAX_TENSOR_BYTES)))
    try:
        # Files in the Hub cache are symlinks.
        stored = read_tensors(path.resolve(), MAX_TENSOR_BYTES, digests[path.name], "folder")
    except (StoreError, OSError) as error:
        raise InputError(str(error)) from error
    return whole(path, as_tensors(stored))


def whole(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors in float32, after checking their number, dtypes and values."""
    if len(tensors) > MAX_TENSORS:
        raise InputError(f"folder: {path} has {len(tensors)} tensors; an adapter has at most {MAX_TENSORS}.")
    if (size := 4 * sum(tensor.numel() for tensor in tensors.values())) > MAX_TENSOR_BYTES:
        raise InputError(
            f"folder: the tensors of {path} take {size:,} bytes in float32; those of an adapter take at most "
            f"{MAX_TENSOR_BYTES:,}."
        )
    _check(path, ((n, t) for n, t in tensors.items() if t.dtype not in _FLOATS), "not of a floating-point type")
    copies = {name: tensor.to(torch.float32).contiguous() for name, tensor in tensors.items()}
    _check(path, ((n, t) for n, t in copies.items() if not t.isfinite().all()), "not finite")
    return copies


_FLOATS = {torch.float64, torch.float32, torch.float16, torch.bfloat16}


def _check(path: Path, wrong: Iterable[tuple[str, Tensor]], what: str) -> None:
    if (first := next(iter(wrong), None)) is not None:
        name, tensor = first
        raise InputError(
            f"folder: {path}: the values of {name[:200]!r} ({str(tensor.dtype).removeprefix('torch.')}) are {what}; a bank "
            "has finite numbers in float32. Save the adapter again in float32, float16 or bfloat16."
        )


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata in the header of a safetensors file."""
    try:
        with safe_open(path, framework="pt") as opened:
            metadata: dict[str, str] = opened.metadata() or {}
            return metadata
    except (SafetensorError, OSError) as error:
        raise InputError(f"folder: {path} cannot be read ({error}); it may be damaged.") from error


HEAD = "head.safetensors"
"""Its tensors are weight (outputs, width) and bias (outputs,); README.md of the export says how they are applied."""


def save_head(subject: Subject, head: LinearHead, folder: Path) -> None:
    """Write a head that no class of the other library supports to a file of its own."""
    save_tensors(dict(head.output.named_parameters()), folder / HEAD, head_notes(subject))


def head_notes(subject: Subject) -> dict[str, str]:
    """Return the metadata of the head's file: notes that peft has no place for and that an import reads."""
    plan = subject.plan
    labels = {} if plan.labels is None else {"labels": json.dumps(plan.labels)}
    pooling = {} if kind_of(plan).per_word else {"pooling": plan.pooling}
    return {"kind": plan.kind, **pooling, **labels}


def save_tensors(tensors: Mapping[str, Tensor], path: Path, notes: Mapping[str, str]) -> None:
    """Write tensors in float32, with notes in the metadata; the same tensors and notes always give the same bytes."""
    whole = {name: tensor.detach().float().cpu().contiguous().clone() for name, tensor in tensors.items()}
    content = save(whole, metadata={"format": "pt", **notes})
    # safetensors writes the entries of the metadata in a random order.
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[start:])
