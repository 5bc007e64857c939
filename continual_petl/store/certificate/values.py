"""The values that certificates are made of: digests, counts, tensors, scores, and references to other banks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from continual_petl._frozen import FrozenModel
from continual_petl.streams.schema.field_types import Name

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""SHA-256, in hexadecimal digits."""
Index = Annotated[int, Field(strict=True, ge=0, lt=2**53)]
"""A count, or a position in the chain; below 2**53, so that every JSON parser reads it exactly."""
Dtype = Literal[
    "float64",
    "int64",
    "uint64",
    "float32",
    "int32",
    "uint32",
    "float16",
    "bfloat16",
    "int16",
    "uint16",
    "int8",
    "uint8",
    "bool",
]
"""Dtypes that a store may contain."""


class TensorEntry(FrozenModel):
    """One stored tensor."""

    dtype: Dtype
    shape: tuple[Index, ...]
    digest: Digest


class Parent(FrozenModel):
    """A bank that another bank was initialised from, or reads."""

    task: Name
    digest: Digest
    """Digest of all its tensors together."""


class SplitScores(FrozenModel):
    """Scores on one split, with a digest of the predictions they are based on."""

    num_examples: Index
    scores: dict[str, float]
    """Scores by name, as computed by torchmetrics."""
    predictions: str
    """Digest of the predictions, row by row."""
