"""Which rows of a task are used for what, decided by a hash of what is in them: the order of a file changes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from continual_petl.errors import InputError, counted
from continual_petl.seeding import derive_seed
from continual_petl.streams.preparation.checked import Checked
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec

_FEW = 20
"""Rows; with fewer, a single one moves an accuracy by more than five points."""


def carve(spec: StreamSpec, task: TaskSpec, train: Checked) -> tuple[Checked, Checked]:
    """Divide train into train and validation by the hash of the inputs; equal inputs stay together.

    Raises:
        InputError: if there are too few different inputs.
    """
    ranks = _ranks(train.keys, derive_seed(spec.seed, task.name, "validation"))
    wanted = max(1, round(task.validation * len(train)))
    inside = ranks <= np.sort(ranks)[wanted - 1]
    if inside.all():
        what = "images" if task.kind == "image-classification" else "texts"
        raise InputError(
            f"task {task.name!r}: there is no validation split, and none can be carved from {len(train)} training rows "
            f"with {len(set(train.keys))} different {what} (validation: {task.validation}); add rows or a validation "
            "split."
        )
    return train.take(np.flatnonzero(~inside)), train.take(np.flatnonzero(inside))


def limited(spec: StreamSpec, task: TaskSpec, name: str, split: Checked) -> Checked:
    """Keep as many rows as the limit of split ``name`` allows, chosen by hash, in their own order."""
    limit: int | None = getattr(task.limits, name)
    if limit is None or limit >= len(split):
        return split
    whole = [f"{key}\t{answer}" for key, answer in zip(split.keys, split.names, strict=True)]
    ranks = _ranks(whole, derive_seed(spec.seed, task.name, "limit", name))
    return split.take(np.sort(np.argsort(ranks, kind="stable")[:limit]))


def few_notice(task: TaskSpec, splits: Mapping[str, Checked]) -> str | None:
    """Return a notice if the scores that count rest on so few rows that they say little."""
    name = "test" if "test" in splits else "validation"
    if (count := len(splits[name])) >= _FEW:
        return None
    rest_on = counted(count, f"{name} row")
    return f"task {task.name!r}: its scores in R rest on {rest_on}: too few to say much about other rows."


def _ranks(contents: list[str], seed: int) -> NDArray[np.uint64]:
    key = seed.to_bytes(8, "big")
    digests = b"".join(hashlib.blake2b(content.encode(), digest_size=8, key=key).digest() for content in contents)
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64)
