"""Budgets of tokens: how many rows make a batch of at most so many tokens, padding included.

Rows are sorted by length and divided into stretches; all batches of a stretch have as many rows as fit if each were as long
as the stretch's longest. Stretches follow from the lengths alone, never from the shuffle, so **every epoch has the same
number of batches**: the learning-rate schedule, the place in a checkpoint and processes that share the batches all count on
it. Samplers that fill each batch as it comes have another number in every epoch, or no length at all (PyG's
``DynamicBatchSampler``); fairseq's ``--max-tokens`` has one number because it makes the batches once and from then on only
shuffles them. Here the rows of a stretch meet in new batches in every epoch.

A stretch ends where rows are an eighth shorter than its longest, so little of a budget stays unused, and it holds whole
batches, so only the very last of an epoch is short. Where ``batch_size`` is what bounds a batch, one stretch takes all the
rest.

Shape legend: N rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from continual_petl.errors import InputError

_SHORTEST = 7 / 8
"""Length at which a stretch may end, as a share of its longest row."""


class Stretch(NamedTuple):
    """Rows of like length whose batches are of one size."""

    num_rows: int
    batch_size: int
    """Rows of each batch; the last one may be shorter."""

    @property
    def num_batches(self) -> int:
        """Batches that the rows make."""
        return -(-self.num_rows // self.batch_size)


def stretches(lengths: NDArray[np.int64], batch_size: int, max_tokens: int | None) -> list[Stretch]:
    """Divide rows, sorted by falling length, into stretches.

    Args:
        lengths: tokens of each row, ``(N,)``, each at most ``max_tokens``.
        batch_size: most rows of a batch.
        max_tokens: most tokens of a batch; None makes one stretch of all rows.

    Example:
        >>> stretches(np.array([9, 1, 1, 10, 1]), batch_size=3, max_tokens=20)
        [Stretch(num_rows=2, batch_size=2), Stretch(num_rows=3, batch_size=3)]
    """
    if max_tokens is None:
        return [Stretch(len(lengths), batch_size)]
    falling = np.sort(lengths)[::-1]
    found: list[Stretch] = []
    start = 0
    while start < len(falling):
        longest = int(falling[start])
        size = rows_that_fit(longest, batch_size, max_tokens)
        stop = len(falling)
        if size < batch_size:
            like = int(np.searchsorted(-falling, -_SHORTEST * longest, side="right")) - start
            stop = min(stop, start + -(-like // size) * size)
        found.append(Stretch(stop - start, size))
        start = stop
    return found


def rows_that_fit(longest: int, batch_size: int, max_tokens: int) -> int:
    """Return how many rows a batch may have if the longest of them has so many tokens."""
    return min(batch_size, max_tokens // max(1, longest))


def check_budget(
    lengths: NDArray[np.int64], max_tokens: int | None, *, where: str = "", key: str = "max_tokens"
) -> None:
    """Check that every row fits into a batch of its own.

    A longer row is an error, not a batch above the budget: the budget is there because more does not fit into memory.

    Args:
        lengths: tokens of each row, ``(N,)``.
        max_tokens: most tokens of a batch; None: as many as there are.
        where: what the rows are, for the message.
        key: where the budget is written.

    Raises:
        InputError: if a row is longer, saying how many are.
    """
    if max_tokens is None:
        return
    if max_tokens < 1:
        raise InputError(f"{key}: got {max_tokens}; it must be at least 1.")
    num_longer, longest = int((lengths > max_tokens).sum()), int(lengths.max(initial=0))
    if num_longer:
        raise InputError(
            f"{where}{key}: got {max_tokens}, but {num_longer} of {len(lengths)} rows are longer, up to {longest} tokens, so "
            f"no batch can hold them. Use at least {longest}, or cut rows shorter (backbone.max_length; max_target_length "
            "for targets)."
        )
