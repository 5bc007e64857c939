"""Token budgets: how many rows fit into a batch with a maximum number of tokens, padding included.

Rows are sorted by length and divided into buckets; each batch of a bucket has as many rows as would fit if all
were as long as the longest row of the bucket. Buckets depend on the lengths alone, never on the shuffle, so **every epoch has
the same number of batches**: the learning-rate schedule, the position in a checkpoint and the processes that share the
batches all rely on this. Samplers that fill batches greedily have a different number in every epoch, or no length at all
(PyG's ``DynamicBatchSampler``); fairseq's ``--max-tokens`` has a fixed number because it builds the batches once and then
only shuffles them. Here the rows of a bucket are combined into new batches in every epoch.

A bucket ends where rows are an eighth shorter than its longest row, so little of the budget is left unused, and it consists
of full batches, so only the last batch of an epoch can be smaller. Where ``batch_size`` is the limit, one bucket takes all
remaining rows.

Shape legend: N rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from continual_petl.errors import InputError

_SHORTEST = 7 / 8
"""Length at which a bucket may end, as a share of its longest row."""


class Bucket(NamedTuple):
    """A bucket: rows of similar length whose batches have the same size."""

    num_rows: int
    batch_size: int
    """Rows per batch; the last batch may be smaller."""

    @property
    def num_batches(self) -> int:
        """Number of batches."""
        return -(-self.num_rows // self.batch_size)


def buckets(lengths: NDArray[np.int64], batch_size: int, max_tokens: int | None) -> list[Bucket]:
    """Divide rows into buckets, by decreasing length.

    Args:
        lengths: tokens of each row, ``(N,)``, each at most ``max_tokens``.
        batch_size: maximum rows per batch.
        max_tokens: maximum tokens per batch; None puts all rows into one bucket.

    Example:
        >>> buckets(np.array([9, 1, 1, 10, 1]), batch_size=3, max_tokens=20)
        [Bucket(num_rows=2, batch_size=2), Bucket(num_rows=3, batch_size=3)]
    """
    if max_tokens is None:
        return [Bucket(len(lengths), batch_size)]
    falling = np.sort(lengths)[::-1]
    found: list[Bucket] = []
    start = 0
    while start < len(falling):
        longest = int(falling[start])
        size = rows_that_fit(longest, batch_size, max_tokens)
        stop = len(falling)
        if size < batch_size:
            like = int(np.searchsorted(-falling, -_SHORTEST * longest, side="right")) - start
            stop = min(stop, start + -(-like // size) * size)
        found.append(Bucket(stop - start, size))
        start = stop
    return found


def rows_that_fit(longest: int, batch_size: int, max_tokens: int) -> int:
    """Return how many rows a batch may have, given the number of tokens of its longest row."""
    return min(batch_size, max_tokens // max(1, longest))


def check_budget(
    lengths: NDArray[np.int64], max_tokens: int | None, *, where: str = "", key: str = "max_tokens"
) -> None:
    """Check that no single row exceeds the budget.

    A longer row is an error rather than a batch above the budget: the budget exists because memory is limited.

    Args:
        lengths: tokens of each row, ``(N,)``.
        max_tokens: maximum tokens per batch; None means no limit.
        where: names the rows in the message.
        key: the setting that holds the budget.

    Raises:
        InputError: if any row is longer; the message says how many rows are.
    """
    if max_tokens is None:
        return
    if max_tokens < 1:
        raise InputError(f"{key}: got {max_tokens}; it must be at least 1.")
    num_longer, longest = int((lengths > max_tokens).sum()), int(lengths.max(initial=0))
    if num_longer:
        raise InputError(
            f"{where}{key}: got {max_tokens}, but {num_longer} of {len(lengths)} rows are longer, up to {longest} tokens, so "
            f"no batch can hold them. Use at least {longest}, or truncate rows (backbone.max_length; max_target_length "
            "for targets)."
        )
