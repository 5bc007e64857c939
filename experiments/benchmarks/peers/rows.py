"""Tokenised rows in a file that every environment can read: flat token ids, offsets of the rows, labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """The rows of one split."""

    ids: Tensor
    """All token ids, row after row."""
    offsets: Tensor
    """Where each row begins in ``ids``, and where the last row ends."""
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each row."""
        return [int(length) for length in self.offsets.diff()]

    def batch(self, numbers: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return ids and mask (B, T), padded with 0 to the longest row, and labels (B,)."""
        pieces = [self.ids[self.offsets[n] : self.offsets[n + 1]] for n in numbers]
        ids_BT = torch.nn.utils.rnn.pad_sequence(pieces, batch_first=True)
        lengths_B = torch.tensor([len(piece) for piece in pieces])
        mask_BT = (torch.arange(ids_BT.shape[1]) < lengths_B.unsqueeze(1)).long()
        return ids_BT, mask_BT, self.labels[torch.tensor(numbers)]

    def by_length(self, batch: int) -> list[list[int]]:
        """Return batches of row numbers that cover all rows, in order of decreasing length."""
        lengths = self.lengths
        order = sorted(range(len(self)), key=lambda number: -lengths[number])
        return [order[begin : begin + batch] for begin in range(0, len(order), batch)]


def write_rows(file: Path, rows: Rows) -> None:
    """Write rows for `read_rows`."""
    save_file({"ids": rows.ids, "offsets": rows.offsets, "labels": rows.labels}, file)


def read_rows(file: str) -> Rows:
    """Read a file written by `write_rows`."""
    found = load_file(file)
    return Rows(found["ids"], found["offsets"], found["labels"])
