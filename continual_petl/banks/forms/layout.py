"""Assigns the rows of a batch to banks when several banks share one pass through the backbone.

Rows of one bank are contiguous. Adjacent banks with the same number of rows form a span: their rows are one block
``(T, rows each, ...)`` of the batch, so one batched product computes all of them without copying a row or a weight.

Shape suffixes: B rows of the batch, N rows of the group, T banks of the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor


class Span(NamedTuple):
    """Adjacent banks with the same number of rows."""

    rows: slice
    """Their rows, counted from the first row of the group."""
    banks: slice
    num_banks: int


class Layout:
    """The rows of one group of banks.

    Args:
        start: index of the group's first row in the batch.
        counts: number of rows of each bank, in order.
        total: number of rows of the batch.
        device: device of the rows.

    Example:
        >>> layout = Layout(1, [2, 2, 3], 8, torch.device("cpu"))
        >>> layout.rows, layout.num_rows, [span.num_banks for span in layout.spans]
        (slice(1, 8, None), 7, [2, 1])
        >>> layout.per_row(torch.tensor([10, 20, 30])).tolist()
        [10, 10, 20, 20, 30, 30, 30]
    """

    def __init__(self, start: int, counts: Sequence[int], total: int, device: torch.device) -> None:
        self.num_banks, self.num_rows, self.total = len(counts), sum(counts), total
        self.rows = slice(start, start + self.num_rows)
        self.spans: list[Span] = []
        row = bank = 0
        for each, same in groupby(counts):
            num_banks = len(list(same))
            rows = slice(row, row + num_banks * each)
            self.spans.append(Span(rows, slice(bank, bank + num_banks), num_banks))
            row, bank = rows.stop, bank + num_banks
        self._bank_N = None if self.num_rows == self.num_banks else _bank_of_row(tuple(counts), device)

    @property
    def whole(self) -> bool:
        """Whether all rows of the batch are in the group."""
        return self.num_rows == self.total

    def per_row(self, value_T: Tensor) -> Tensor:
        """Return the value of each row's bank: ``(T, ...)`` to ``(N, ...)``."""
        if self._bank_N is None:
            return value_T
        return value_T.expand(self.num_rows, *value_T.shape[1:]) if len(value_T) == 1 else value_T[self._bank_N]

    def check(self, rows: int, wanted: int, what: str) -> None:
        """Raise `RuntimeError` if a tensor of the pass has an unexpected number of rows."""
        if rows != wanted:
            raise RuntimeError(
                f"{what} has {rows} rows, but {wanted} were expected: this model changes the rows of a batch during a "
                "pass, so several banks cannot share one. Predict one task at a time."
            )


@lru_cache(maxsize=256)
@torch.inference_mode(False)
def _bank_of_row(counts: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the number of each row's bank (N,); kept, since a GPU would wait for the copy, and a CUDA graph refuses it."""
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)).to(device)
