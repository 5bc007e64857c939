"""``bank.json``: everything about one learned task that is not a tensor, in a strict schema with a version inside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from continual_petl._frozen import FrozenModel
from continual_petl.backbones import Pooling
from continual_petl.banks.spec import BankSpec
from continual_petl.digests import combined_digest
from continual_petl.errors import StoreError
from continual_petl.heads.kinds import Kind
from continual_petl.store.atomic import write_json
from continual_petl.store.environment import Environment
from continual_petl.streams.schema.stream_spec import GenerationSpec, TrainingSpec

FORMAT_VERSION = 1


class TensorEntry(FrozenModel):
    """One stored tensor."""

    dtype: str
    shape: tuple[int, ...]
    digest: str


class SplitScores(FrozenModel):
    """Scores on one split, with what they rest on."""

    num_examples: int
    scores: dict[str, float]
    """By name, torchmetrics' values."""
    predictions: str
    """Digest of the predictions, row by row."""


class Parent(FrozenModel):
    """The bank that another one began as a copy of."""

    task: str
    digest: str
    """Of its tensors, all together."""


class Manifest(FrozenModel):
    """The certificate's part that people can read."""

    format_version: Literal[1] = 1
    task: str
    index: int
    """Position in the order of learning, from 0."""
    predecessor: str | None
    """Digest of the manifest of the task learned before; None for the first."""
    kind: Kind
    pair: bool
    """Whether a row is two texts."""
    labels: tuple[str, ...] | None
    class_weights: tuple[float, ...] | None
    """One per label, as they entered the loss."""
    bank: BankSpec
    training: TrainingSpec
    pooling: Pooling
    metric: str
    seed: int
    """The task's own seed, derived from the stream's seed and the task's name."""
    generation: GenerationSpec | None
    """How texts are generated; None for kinds that answer otherwise."""
    max_length: int
    """Tokens of a row; 0 where the backbone reads images."""
    max_target_length: int | None
    """Tokens of a target while learning."""
    backbone: str
    """Digest of the backbone."""
    preparation: str
    """Digest of what makes the backbone's inputs: the tokenizer, or the processing of images."""
    tensors: dict[str, TensorEntry]
    digest: str
    """Of all tensors together: two banks are the same if and only if this is."""
    probe: str
    """Digest of probe.safetensors."""
    scores: dict[str, SplitScores]
    """By split: validation, and test where there is one."""
    data: dict[str, str]
    """Digest of each split's content."""
    notices: tuple[str, ...]
    parameters: dict[str, int]
    """Number of parameters: modifications, own, head."""
    environment: Environment
    parent: Parent | None = None
    """The bank that this one began as a copy of; None for a fresh one."""

    def chain_digest(self) -> str:
        """Return the digest that the next task's manifest names."""
        return combined_digest(self.model_dump(mode="json"))


_SEAL = "seal"
"""Key of the digest over all the others. The chain cannot tell of an edit in the newest manifest; this can."""


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write a manifest with its seal."""
    write_json(path, {**manifest.model_dump(mode="json"), _SEAL: manifest.chain_digest()})


def read_manifest(path: Path) -> Manifest:
    """Read a manifest, or raise `StoreError` naming the file and what is wrong with it."""
    try:
        raw: Any = json.loads(path.read_bytes())
        if isinstance(raw, dict) and raw.get("format_version") != FORMAT_VERSION:
            raise StoreError(
                f"{path}: format version {raw.get('format_version')!r}, this release reads {FORMAT_VERSION}. "
                "Read it with the release of continual-petl that wrote it."
            )
        seal = raw.pop(_SEAL, None) if isinstance(raw, dict) else None
        manifest = Manifest.model_validate(raw)
        if seal != manifest.chain_digest():
            raise StoreError(
                f"{path}: its content is not what its seal was made of; it was edited after task {manifest.task!r} was "
                "learned. Restore the file from a copy: labels, settings and scores in it can no longer be trusted."
            )
        return manifest
    except FileNotFoundError:
        raise StoreError(f"{path}: missing; the bank's folder is incomplete or was edited") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole file"
        raise StoreError(f"{path}: {place}: {first['msg']}; the file is damaged or was edited") from error
    except ValueError as error:
        raise StoreError(f"{path}: not JSON ({error}); the file is damaged") from error
