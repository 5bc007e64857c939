"""The values that certificates are made of: digests, counts, tensors, scores, other banks, and where a bank comes from.

A tensor as stored in a file is its raw bytes, so that torch is only needed to compute with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from continual_petl._strict_model import StrictModel
from continual_petl.digests import content_digest
from continual_petl.streams.schema.field_types import Name

if TYPE_CHECKING:
    import torch
    from torch import Tensor


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


class TensorEntry(StrictModel):
    """One stored tensor."""

    dtype: Dtype
    shape: tuple[Index, ...]
    digest: Digest


class BankReference(StrictModel):
    """A bank that another bank was initialised from, or reads."""

    task: Name
    digest: Digest
    """Digest of all its tensors together."""


class SplitScores(StrictModel):
    """Scores on one split, with a digest of the predictions they are based on."""

    num_examples: Index
    scores: dict[str, float]
    """Scores by name, as computed by torchmetrics."""
    predictions: str
    """Digest of the predictions, row by row."""


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

    def tensor(entry: StoredTensor) -> Tensor:
        dtype: torch.dtype = getattr(torch, entry.dtype)
        # `frombuffer` rejects empty buffers.
        flat = torch.frombuffer(entry.content, dtype=dtype) if entry.content else torch.empty(0, dtype=dtype)
        return flat.reshape(entry.shape)

    return {name: tensor(entry) for name, entry in stored.items()}


Text = Annotated[str, Field(max_length=1000)]


class Origin(StrictModel):
    """Another library, whose files a bank was imported from, or a Trainer of the user's own."""

    format: Literal["peft", "adapters", "trainer"]
    """The library that wrote the files; ``trainer`` for a Trainer of the user's own."""
    method: Text
    """The library's name for the method, or what the Trainer did."""
    base: Text | None
    """The base model that the adapter's configuration names; None if it names none."""
    files: dict[Text, Digest]
    """SHA-256 of each file that was read, by name."""

    @property
    def is_imported(self) -> bool:
        """Whether the bank was imported from files."""
        return self.format != "trainer"

    @property
    def in_words(self) -> str:
        """Description of the origin."""
        return (
            f"an adapter of {self.format} ({self.method})" if self.is_imported else f"its own Trainer ({self.method})"
        )


class StartCandidate(StrictModel):
    """One of the starting points that were tried."""

    parents: tuple[BankReference, ...] = ()
    """The bank that is copied, or the banks that are averaged; empty for a fresh bank."""
    weights: tuple[float, ...] = ()
    """Weight of each averaged bank."""
    score: float | None = None
    """The task's metric on validation rows after the short fit; None if it is undefined, or nothing was tried."""

    @model_validator(mode="after")
    def _weighs_parents(self) -> StartCandidate:
        if len(self.weights) != (len(self.parents) if len(self.parents) > 1 else 0):
            raise ValueError(f"weights: got {len(self.weights)} for {len(self.parents)} parents")
        return self

    @property
    def in_words(self) -> str:
        """Description of this starting point."""
        names = [repr(parent.task) for parent in self.parents]
        if len(names) > 1:
            return "an average of " + ", ".join(f"{n} ({w:.2f})" for n, w in zip(names, self.weights, strict=True))
        return f"a copy of {names[0]}" if names else "a fresh bank"


class Start(StrictModel):
    """What a bank started from: the starting points that were tried, and the one that was taken."""

    num_steps: Index
    """Number of optimizer steps that a bank was trained for from each starting point."""
    num_rows: Index
    """Number of validation rows that these banks were scored on."""
    candidates: Annotated[tuple[StartCandidate, ...], Field(min_length=1)]
    chosen: Index
    """Position in `candidates`."""

    @model_validator(mode="after")
    def _has_chosen(self) -> Start:
        if self.chosen >= len(self.candidates):
            raise ValueError(f"chosen: got {self.chosen}, with {len(self.candidates)} candidates")
        return self

    @property
    def taken(self) -> StartCandidate:
        """The starting point that was taken."""
        return self.candidates[self.chosen]

    @property
    def gain(self) -> float | None:
        """Score from the starting point that was taken minus the score from a fresh bank, both after the short fit."""
        fresh = next((candidate.score for candidate in self.candidates if not candidate.parents), None)
        return None if fresh is None or self.taken.score is None else self.taken.score - fresh

    @property
    def in_words(self) -> str:
        """Description of the starting point that was taken and of all that were tried."""
        if len(self.candidates) == 1:
            return self.taken.in_words
        scores = ", ".join(
            f"{candidate.in_words} {'diverged' if candidate.score is None else f'{candidate.score:.4f}'}"
            for candidate in self.candidates
        )
        return f"{self.taken.in_words}; validation scores after {self.num_steps:,} steps: {scores}"
