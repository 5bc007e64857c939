"""A tensor as stored in a file: its raw bytes, so that torch is only needed to compute with the tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from continual_petl.digests import content_digest

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as read from a file."""

    dtype: str
    """As in `TensorEntry`."""
    shape: tuple[int, ...]
    content: bytearray

    @property
    def digest(self) -> str:
        """The `continual_petl.digests.tensor_digest` of the tensor."""
        return content_digest(self.dtype, self.shape, self.content)


def as_tensors(stored: Mapping[str, StoredTensor]) -> dict[str, Tensor]:
    """Return torch tensors that share memory with the stored ones."""
    import torch

    def tensor(one: StoredTensor) -> Tensor:
        dtype: torch.dtype = getattr(torch, one.dtype)
        # `frombuffer` rejects empty buffers.
        flat = torch.frombuffer(one.content, dtype=dtype) if one.content else torch.empty(0, dtype=dtype)
        return flat.reshape(one.shape)

    return {name: tensor(one) for name, one in stored.items()}
