"""Which rows make a batch; `continual_petl.streams.batches.collate` makes tensors of them.

Rows of like length share a batch, so little of a batch is padding. Training: shuffle all rows, cut into chunks of 50
batches, sort each chunk by length, cut into batches, shuffle the batches (``group_by_length`` of transformers'
Trainer works alike, with one fixed chunk and another order). The result is a pure function of (seed, epoch): any
epoch can be made again at any time, which is what lets a run go on in the middle of one.

Images have no length: their order is a plain shuffle. Shape legend: N rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from continual_petl.errors import InputError
from continual_petl.seeding import derive_seed
from continual_petl.streams.batches.collate import collate as collate

Batch = NDArray[np.int64]
"""Row numbers of one batch."""

_CHUNK_BATCHES = 50


@dataclass(frozen=True, kw_only=True, eq=False)
class LengthBucketed:
    """The order of training batches.

    Args:
        lengths: tokens of each row, ``(N,)``, N at least 1.
        batch_size: rows of a batch; the last one of an epoch may be shorter, no row is dropped.
        seed: together with the epoch it decides the order.

    Raises:
        InputError: if there are no rows, or ``batch_size`` is below 1.

    Example:
        >>> order = LengthBucketed(lengths=np.array([3, 9, 3, 9]), batch_size=2, seed=0)
        >>> sorted(sorted(batch.tolist()) for batch in order.epoch(0))
        [[0, 2], [1, 3]]
    """

    lengths: NDArray[np.int64]
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        _check(self.lengths, self.batch_size)

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.batch_size)

    def epoch(self, epoch: int) -> list[Batch]:
        """Return all batches of an epoch, in order."""
        rng = np.random.default_rng(derive_seed(self.seed, "batches", epoch))
        shuffled = rng.permutation(len(self.lengths))
        chunk = _CHUNK_BATCHES * self.batch_size
        batches: list[Batch] = []
        for start in range(0, len(shuffled), chunk):
            rows = shuffled[start : start + chunk]
            batches += _cut(rows[np.argsort(self.lengths[rows], kind="stable")], self.batch_size)
        return [batches[position] for position in rng.permutation(len(batches))]

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that change with the rows' lengths, the batch size and the seed."""
        digest = hashlib.sha256(f"{self.seed} {self.batch_size} ".encode())
        digest.update(self.lengths.astype("<i8").tobytes())
        return digest.hexdigest()[:12]


def evaluation_batches(lengths: NDArray[np.int64], batch_size: int) -> list[Batch]:
    """Return batches by falling length, rows of one length in their own order; the same for every seed.

    The widest batch comes first, so a device that is too small says so at once.

    Raises:
        InputError: if there are no rows, or ``batch_size`` is below 1.
    """
    _check(lengths, batch_size)
    return _cut(np.argsort(-lengths, kind="stable"), batch_size)


def _check(lengths: NDArray[np.int64], batch_size: int) -> None:
    if batch_size < 1:
        raise InputError(f"batch_size: got {batch_size}; it must be at least 1.")
    if len(lengths) == 0:
        raise InputError("there are no rows to make batches of; give the split at least one row.")


def _cut(rows: Batch, batch_size: int) -> list[Batch]:
    return [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
