"""Reads the folder of an adapter of `adapters`.

The library's own files are pickles; see `continual_petl.exchange.pickled`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from continual_petl.errors import InputError
from continual_petl.exchange.adapter_files import (
    CONFIG,
    HEAD,
    MAX_TENSOR_BYTES,
    AdapterFiles,
    digests_of,
    read_config,
    read_metadata,
    read_safetensors,
    read_whole,
    whole,
)
from continual_petl.exchange.adapterhub.head import HEAD_CONFIG, HEAD_TENSORS
from continual_petl.exchange.adapterhub.read_head import read_hub_head
from continual_petl.exchange.pickled import read_pickled

TENSORS = "adapter.safetensors"
PICKLE = "pytorch_adapter.bin"
HEAD_PICKLE = "pytorch_model_head.bin"


def read_hub_files(folder: str | Path) -> AdapterFiles:
    """Read the folder of an adapter of `adapters`, and the head saved with it, if there is one.

    If there is a head.safetensors, it is read instead of the library's head.

    Raises:
        InputError: if a file is missing, too large or damaged, or a bank cannot express the head.
    """
    root = Path(folder)
    tensors = _first(root, TENSORS, PICKLE)
    if tensors is None:
        raise InputError(f"folder: {root} has neither {TENSORS} nor {PICKLE}; it is incomplete.")
    own = _first(root, HEAD)
    theirs = _first(root, HEAD_TENSORS, HEAD_PICKLE) if own is None else None
    config = root / HEAD_CONFIG if theirs is not None else None
    paths = [path for path in (root / CONFIG, tensors, own, theirs, config) if path is not None and path.is_file()]
    digests = digests_of(paths)
    adapter_files = AdapterFiles(root, read_config(root / CONFIG), _read_either(tensors, digests), {}, {}, digests)
    if own is not None:
        return replace(adapter_files, head=read_safetensors(own, digests[HEAD]), notes=read_metadata(own))
    if theirs is None or config is None:
        return adapter_files
    described, parts = read_config(config), _read_either(theirs, digests)
    head, notes = read_hub_head(described, parts)
    if not head:
        return replace(adapter_files, notes=notes, copies=parts)
    return replace(adapter_files, head=head, notes=notes, hub_head=described)


def _first(folder: Path, *names: str) -> Path | None:
    """Return the first of the named files that exists; None if none does."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read_either(path: Path, digests: Mapping[str, str]) -> dict[str, Tensor]:
    return read_safetensors(path, digests[path.name]) if path.suffix == ".safetensors" else _read_pickle(path)


def _read_pickle(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a file written by torch.save."""
    return whole(path, read_pickled(path, read_whole(path, MAX_TENSOR_BYTES)))
