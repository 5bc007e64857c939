"""Group rows into batches of similar length; `continual_petl.streams.batches.collate` turns them into tensors.

Rows of similar length share a batch, so there is little padding. For training, shuffle all rows, cut them into chunks of
50 batches, sort each chunk by length, cut it into batches, and shuffle the batches (``group_by_length`` of transformers'
Trainer is similar, with a fixed chunk size and a different order). The result is a pure function of (seed, epoch): any epoch
can be reproduced at any time, so a run can resume in the middle of one. With a token budget
(`continual_petl.streams.batches.budget`), the rows are first divided into buckets of similar length, each with its own
number of rows per batch, and the procedure is applied to each bucket.

Images have no length: their order is a plain shuffle. Shape legend: N rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from continual_petl.errors import InputError
from continual_petl.seeding import derive_seed
from continual_petl.streams.batches.budget import Bucket, buckets, check_budget, rows_that_fit
from continual_petl.streams.batches.collate import collate as collate

Batch = NDArray[np.int64]
"""Row indices of one batch."""

_CHUNK_BATCHES = 50


@dataclass(frozen=True, kw_only=True, eq=False)
class LengthBucketed:
    """The order of training batches.

    Args:
        lengths: tokens of each row, ``(N,)``, N at least 1.
        batch_size: maximum rows per batch; the last batch of an epoch may be smaller, and no row is dropped.
        seed: determines the order, together with the epoch.
        max_tokens: maximum tokens per batch, padding included: number of rows times length of the longest row. None means no
            limit.

    Raises:
        InputError: if there are no rows, ``batch_size`` is below 1, or a single row is longer than ``max_tokens``.

    Example:
        >>> order = LengthBucketed(lengths=np.array([3, 9, 3, 9]), batch_size=2, seed=0)
        >>> sorted(sorted(batch.tolist()) for batch in order.epoch(0))
        [[0, 2], [1, 3]]
    """

    lengths: NDArray[np.int64]
    batch_size: int
    seed: int
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        _check(self.lengths, self.batch_size, self.max_tokens)

    def __len__(self) -> int:
        """Return the number of batches, which is the same in every epoch: it depends on the lengths alone."""
        return sum(bucket.num_batches for bucket in self._buckets)

    @cached_property
    def _buckets(self) -> list[Bucket]:
        return buckets(self.lengths, self.batch_size, self.max_tokens)

    def epoch(self, epoch: int) -> list[Batch]:
        """Return all batches of an epoch, in order."""
        rng = np.random.default_rng(derive_seed(self.seed, "batches", epoch))
        rows = rng.permutation(len(self.lengths))
        if self.max_tokens is not None:
            rows = rows[np.argsort(-self.lengths[rows], kind="stable")]
        batches: list[Batch] = []
        for bucket in self._buckets:
            members, rows = rows[: bucket.num_rows], rows[bucket.num_rows :]
            if self.max_tokens is not None:
                members = rng.permutation(members)
            for chunk in _cut(members, _CHUNK_BATCHES * bucket.batch_size):
                batches += _cut(chunk[np.argsort(self.lengths[chunk], kind="stable")], bucket.batch_size)
        return [batches[position] for position in rng.permutation(len(batches))]

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that change with the row lengths, the batch size, the budget and the seed."""
        budget = "" if self.max_tokens is None else f"{self.max_tokens} "
        digest = hashlib.sha256(f"{self.seed} {self.batch_size} {budget}".encode())
        digest.update(self.lengths.astype("<i8").tobytes())
        return digest.hexdigest()[:12]


def evaluation_batches(lengths: NDArray[np.int64], batch_size: int, max_tokens: int | None = None) -> list[Batch]:
    """Return batches by decreasing length, keeping the order of rows of equal length; the same for every seed.

    The widest batch is first, so a device with too little memory fails immediately.

    Args:
        lengths: tokens of each row, ``(N,)``.
        batch_size: maximum rows per batch.
        max_tokens: maximum tokens per batch, padding included; None means no limit.

    Raises:
        InputError: if there are no rows, ``batch_size`` is below 1, or a single row is longer than ``max_tokens``.
    """
    _check(lengths, batch_size, max_tokens)
    rows = np.argsort(-lengths, kind="stable")
    if max_tokens is None:
        return _cut(rows, batch_size)
    batches = []
    while len(rows):
        size = rows_that_fit(int(lengths[rows[0]]), batch_size, max_tokens)
        batches.append(rows[:size])
        rows = rows[size:]
    return batches


def _check(lengths: NDArray[np.int64], batch_size: int, max_tokens: int | None) -> None:
    if batch_size < 1:
        raise InputError(f"batch_size: got {batch_size}; it must be at least 1.")
    if len(lengths) == 0:
        raise InputError("there are no rows to batch; give the split at least one row.")
    check_budget(lengths, max_tokens)


def _cut(rows: Batch, batch_size: int) -> list[Batch]:
    return [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
