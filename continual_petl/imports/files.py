"""Reads the folder of an adapter from any source: JSON and safetensors of limited size; nothing is executed."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from continual_petl.digests import file_digest
from continual_petl.errors import InputError, StoreError
from continual_petl.export.adapterhub_head import HEAD_CONFIG, HEAD_TENSORS
from continual_petl.export.restated import HEAD
from continual_petl.imports.adapterhub_head import read_hub_head
from continual_petl.store.certificate.stored_tensor import as_tensors
from continual_petl.store.certificate.tensor_file import read_tensors
from continual_petl.store.files.reading import parse_json, read_file

CONFIG = "adapter_config.json"
PEFT_TENSORS = "adapter_model.safetensors"
PEFT_PICKLE = "adapter_model.bin"
HUB_TENSORS = "adapter.safetensors"
HUB_PICKLE = "pytorch_adapter.bin"
HUB_HEAD_PICKLE = "pytorch_model_head.bin"
MAX_CONFIG_BYTES = 2**20
MAX_TENSOR_BYTES = 4 * 2**30
MAX_TENSORS = 50_000


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
    """The configuration of a head of `adapters`, if the head is one."""


def read_peft_files(folder: str | Path) -> AdapterFiles:
    """Read the folder of a `peft` adapter.

    Raises:
        InputError: if a file is missing, too large, damaged, or could execute code when it is read.
    """
    place = Path(folder)
    config, tensors = place / CONFIG, place / PEFT_TENSORS
    if not config.is_file():
        raise InputError(
            f"folder: {place} has no {CONFIG}, so it is not a peft adapter. Give the folder that save_pretrained wrote."
        )
    if not tensors.is_file():
        instead = (
            f" It has {PEFT_PICKLE}, which can execute code when it is read: if you trust it, load it with peft and save "
            "it again (save_pretrained writes safetensors)."
        )
        raise InputError(
            f"folder: {place} has no {PEFT_TENSORS}.{instead if (place / PEFT_PICKLE).exists() else ' It is incomplete.'}"
        )
    digests = {path.name: file_digest(path) for path in (config, tensors, place / HEAD) if path.is_file()}
    head = read_safetensors(place / HEAD, digests[HEAD]) if HEAD in digests else {}
    return AdapterFiles(
        folder=place,
        config=read_config(config),
        tensors=read_safetensors(tensors, digests[PEFT_TENSORS]),
        head=head,
        notes=_metadata(place / HEAD if head else tensors),
        digests=digests,
    )


def read_hub_files(folder: str | Path) -> AdapterFiles:
    """Read the folder of an adapter of `adapters`, with the head that it may have saved.

    The library's own files are pickles; torch reads them with ``weights_only``, which builds tensors and executes nothing.
    If there is a head.safetensors, it is read instead of the library's head.

    Raises:
        InputError: if a file is missing, too large or damaged, or its head is not like a bank's.
    """
    place = Path(folder)
    tensors = _first(place, HUB_TENSORS, HUB_PICKLE)
    if tensors is None:
        raise InputError(f"folder: {place} has neither {HUB_TENSORS} nor {HUB_PICKLE}; it is incomplete.")
    own = _first(place, HEAD)
    theirs = _first(place, HEAD_TENSORS, HUB_HEAD_PICKLE) if own is None else None
    config = place / HEAD_CONFIG if theirs is not None else None
    paths = [path for path in (place / CONFIG, tensors, own, theirs, config) if path is not None and path.is_file()]
    digests = {path.name: file_digest(path) for path in paths}
    whole = read_config(place / CONFIG)
    found = AdapterFiles(place, whole, _read_either(tensors, digests), {}, {}, digests)
    if own is not None:
        return replace(found, head=read_safetensors(own, digests[HEAD]), notes=_metadata(own))
    if theirs is None or config is None:
        return found
    described, parts = read_config(config), _read_either(theirs, digests)
    head, notes = read_hub_head(described, parts)
    if not head:
        return replace(found, notes=notes, copies=parts)
    return replace(found, head=head, notes=notes, hub_head=described)


def _first(folder: Path, *names: str) -> Path | None:
    """Return the first of some files that exists."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read_either(path: Path, digests: Mapping[str, str]) -> dict[str, Tensor]:
    return read_safetensors(path, digests[path.name]) if path.suffix == ".safetensors" else _read_pickle(path)


def _read_pickle(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a file that torch.save wrote."""
    try:
        content = io.BytesIO(read_file(path.resolve(), MAX_TENSOR_BYTES))
        found = torch.load(content, map_location="cpu", weights_only=True)
    except (StoreError, OSError, ValueError, RuntimeError, EOFError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"folder: {path} cannot be read ({str(error)[:300]}); it is damaged.") from error
    except Exception as error:  # the unpickler's own error, whose module is not imported here
        raise InputError(
            f"folder: {path} holds more than tensors ({type(error).__name__}), so it could execute code, or it is damaged. "
            "Save the adapter again with use_safetensors=True."
        ) from error
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) and tensor.layout == torch.strided
        for name, tensor in found.items()
    ):
        raise InputError(f"folder: {path} does not contain a mapping from names to tensors; it is not an adapter.")
    return whole(path, found)


def read_config(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        InputError: if it is too large, or not a JSON object.
    """
    try:
        return parse_json(read_file(path.resolve(), MAX_CONFIG_BYTES), str(path))
    except (StoreError, OSError) as error:
        raise InputError(f"folder: {error}") from error


def read_safetensors(path: Path, digest: str | None = None) -> dict[str, Tensor]:
    """Return the tensors in a file, in float32.

    Args:
        path: the file.
        digest: its SHA-256, if known.

    Raises:
        InputError: if it is too large or damaged, or contains a tensor that no adapter has.
    """
    try:
        # Files in the Hub cache are symlinks.
        stored = read_tensors(path.resolve(), MAX_TENSOR_BYTES, digest, "folder")
    except (StoreError, OSError) as error:
        raise InputError(str(error)) from error
    return whole(path, as_tensors(stored))


def whole(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors in float32, after checking their number, dtypes and values."""
    if len(tensors) > MAX_TENSORS:
        raise InputError(f"folder: {path} has {len(tensors)} tensors; an adapter has at most {MAX_TENSORS}.")
    _check(path, ((n, t) for n, t in tensors.items() if t.dtype not in _FLOATS), "not of a floating-point type")
    made = {name: tensor.to(torch.float32) for name, tensor in tensors.items()}
    _check(path, ((n, t) for n, t in made.items() if not t.isfinite().all()), "not finite")
    return made


_FLOATS = {torch.float64, torch.float32, torch.float16, torch.bfloat16}


def _check(path: Path, wrong: Iterable[tuple[str, Tensor]], what: str) -> None:
    if (first := next(iter(wrong), None)) is not None:
        name, tensor = first
        raise InputError(
            f"folder: {path}: the values of {name[:200]!r} ({str(tensor.dtype).removeprefix('torch.')}) are {what}; a bank "
            "has finite numbers in float32. Save the adapter again in float32, float16 or bfloat16."
        )


def _metadata(path: Path) -> dict[str, str]:
    """Return the metadata in the header of a safetensors file."""
    try:
        with safe_open(path, framework="pt") as opened:
            found: dict[str, str] = opened.metadata() or {}
            return found
    except (SafetensorError, OSError) as error:
        raise InputError(f"folder: {path} cannot be read ({error}); it is damaged.") from error
