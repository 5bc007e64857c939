"""SHA-256 digests of tensors, the basis of every claim of this project that something is "unchanged".

A digest covers dtype, shape and every byte. It is the same on every machine, because tensors are hashed in row-major
order as little-endian bytes, the byte order of every platform that PyTorch supports.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn
    from typing_extensions import Buffer


def tensor_digest(tensor: Tensor) -> str:
    """Return the hex digest of one tensor: dtype, shape and contents, whatever its device and strides.

    The digest of a quantised tensor combines the digests of its codes and scales. A sharded tensor (a DTensor) is gathered
    and hashed as a whole, so all processes have to call this function together.
    """
    import torch  # importing it takes seconds, and any caller with a tensor has already done so

    if hasattr(tensor, "full_tensor"):
        tensor = tensor.full_tensor()
    if hasattr(tensor, "__tensor_flatten__"):
        parts = {name: tensor_digest(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0]}
        return combined_digest({"class": type(tensor).__name__, "shape": list(tensor.shape), **parts})
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    if flat.numel() == 1:
        flat = flat.as_strided((1,), (1,))  # a single element can have any stride
    # A view as bytes: no copy, and works for dtypes such as bfloat16 that numpy lacks.
    content = flat.view(torch.uint8).numpy().data if flat.numel() else b""
    return content_digest(str(tensor.dtype).removeprefix("torch."), tensor.shape, content)


def content_digest(dtype: str, shape: Sequence[int], content: Buffer) -> str:
    """Return the hex digest of a tensor given as dtype, shape and bytes; torch is not needed."""
    digest = hashlib.sha256(f"torch.{dtype}{tuple(shape)}".encode())
    digest.update(content)
    return digest.hexdigest()


def tensor_digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the digest of each tensor, sorted by name."""
    return {name: tensor_digest(tensors[name]) for name in sorted(tensors)}


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are identical bit for bit: NaN equals itself, and 0.0 differs from -0.0."""
    return tensor_digest(one) == tensor_digest(other)


def combined_digest(parts: Mapping[str, Any]) -> str:
    """Return one digest over a mapping of JSON values (digests, settings); the order of its keys does not matter."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def module_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and buffer of a module, including those that its state dict leaves out."""
    named = dict(module.named_parameters(remove_duplicate=False))
    return named | dict(module.named_buffers(remove_duplicate=False))


def file_digest(path: Path) -> str:
    """Return the hex digest of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
