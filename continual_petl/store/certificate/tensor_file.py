"""Safetensors files (https://huggingface.co/docs/safetensors), checked before anything is allocated.

The format: eight bytes with the length of a JSON header; the header with each tensor's dtype, shape and byte range; then the
tensors' bytes. Digests are computed from the raw bytes, so a report can check every bank without torch, which takes seconds
to import.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, deserialize

from continual_petl.errors import StoreError
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.certificate.finding import Damaged, Finding
from continual_petl.store.certificate.values import StoredTensor, TensorEntry
from continual_petl.store.files.reading import read_file

_DTYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8"},
    **{"U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8"},
}
"""Maps the names of dtypes in the file format to those in `TensorEntry`."""
_SIZES = {
    **dict.fromkeys(("float64", "int64", "uint64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("int8", "uint8", "bool"), 1),
}
_MAX_HEADER = 256
"""Maximum number of header bytes per tensor besides its name, more than its dtype, shape and byte range ever take."""


def entry_bytes(entry: TensorEntry) -> int:
    """Return the size of a tensor in bytes."""
    return math.prod(entry.shape) * _SIZES[entry.dtype]


def num_bytes(entries: Mapping[str, TensorEntry]) -> int:
    """Return the total size of the tensors in bytes."""
    return sum(map(entry_bytes, entries.values()))


def read_tensors(path: Path, max_bytes: int, certified: str | None, what: str) -> dict[str, StoredTensor]:
    """Return the tensors in a file of limited size.

    Args:
        path: the file.
        max_bytes: maximum size of the file in bytes, header included.
        certified: SHA-256 of the file, if known.
        what: the owner of the file, for messages: ``task 'x'``.

    Raises:
        StoreError: if the file is missing, too large, or malformed.
        Damaged: if it can be read but its bytes are not the certified ones.
    """
    try:
        content = read_file(path, max_bytes)
    except FileNotFoundError as error:
        raise StoreError(f"{what}: {path} cannot be read ({os.strerror(2)}); it is missing") from error
    except StoreError as error:
        raise StoreError(f"{what}: {error}") from error
    try:
        read = list(deserialize(content))  # type: ignore[no-untyped-call]
        if wrong := next(((name, entry["dtype"]) for name, entry in read if entry["dtype"] not in _DTYPES), None):
            raise StoreError(
                f"{what}: {path}: tensor {wrong[0][:200]!r} is of the type {wrong[1]}, which no bank has; allowed: "
                f"{', '.join(_DTYPES)}. Save it in one of these."
            )
        tensors = {
            name: StoredTensor(_DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["data"]) for name, entry in read
        }
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise StoreError(f"{what}: {path} cannot be read ({error}); it is damaged") from error
    if certified is not None and hashlib.sha256(content).hexdigest() != certified:
        raise Damaged(
            Finding(
                message=f"{what}: {path}: its bytes are not those that were certified; the file was changed after the task "
                "was learned",
                file=str(path),
                cause="a damaged disk, a bad copy, or an edit",
            ),
            tensors,
        )
    return tensors


def certified_tensors(path: Path, certificate: Certificate) -> dict[str, StoredTensor]:
    """Return a bank's stored tensors, each checked against its digest in the certificate.

    Raises:
        StoreError: naming the first tensor that is missing, unexpected or changed.
    """
    name = f"task {certificate.task!r}"
    try:
        tensors = read_tensors(path, max_file_bytes(certificate.tensors), certificate.files[path.name], name)
    except Damaged as damage:
        # An error that names the changed tensor is more useful than one about the digest of the file.
        check_digests(damage.tensors, certificate.tensors, path, name)
        raise
    check_digests(tensors, certificate.tensors, path, name)
    return tensors


def max_file_bytes(entries: Mapping[str, TensorEntry]) -> int:
    """Return the largest possible size in bytes of a file of these tensors."""
    return num_bytes(entries) + 1024 + sum(len(name.encode()) * 6 + _MAX_HEADER for name in entries)


def check_digests(
    tensors: Mapping[str, StoredTensor], entries: Mapping[str, TensorEntry], path: Path, what: str
) -> None:
    """Raise `Damaged`, naming the first tensor, unless these are exactly the certified tensors."""
    for name in sorted(tensors.keys() ^ entries.keys()):
        state = "is in the certificate but not in the file" if name in entries else "is not in the certificate"
        raise Damaged(
            Finding(
                message=f"{what}: {path}: tensor {name} {state}; the file or the certificate was replaced",
                file=str(path),
                tensor=name,
                cause="the file or the certificate was replaced",
            )
        )
    for name in sorted(tensors):
        digest = tensors[name].digest
        if digest != entries[name].digest:
            raise Damaged(
                Finding(
                    message=f"{what}: {path}: tensor {name} has the digest {digest[:12]}, but the certified digest is "
                    f"{entries[name].digest[:12]}; the file was changed after the task was learned",
                    file=str(path),
                    tensor=name,
                    cause="a damaged disk, a bad copy, or an edit",
                ),
                tensors,
            )
