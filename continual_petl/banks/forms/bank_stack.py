"""The parameters of several banks of one type, stacked: one row of a matrix for each bank.

A row holds all parameters of a bank except those of its head: vectors in one matrix, all other tensors in another. So
stacking takes one copy per bank and matrix, and a view ``(T, ...)`` holds the values of one parameter in all banks.

Shape suffixes: T banks, N rows of a batch.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class BankState(NamedTuple):
    """The current parameters of one bank."""

    tensors: Mapping[str, Tensor]
    owners: Sequence[tuple[Mapping[str, Any], str, Tensor]]
    """For each tensor: its module's dictionary of parameters, its name in that dictionary, and the tensor itself."""
    version: tuple[int, torch.device]
    serial: int
    """A number that identifies this bank together with its current parameter values."""
    kind: Hashable


class BankStack:
    """The parameters of banks of one type.

    Args:
        first: the parameters of one of the banks, by name; in the other banks, names and shapes are the same.
        capacity: maximum number of banks.
    """

    def __init__(self, first: Mapping[str, Tensor], capacity: int) -> None:
        self.capacity = capacity
        self.key: tuple[int, ...] = ()
        """The serial number of the bank in each row; see `BankState`."""
        self.num_users = 0
        self._names: dict[bool, list[str]] = {True: [], False: []}
        self._places: dict[str, tuple[int, int]] = {}
        ends = {True: 0, False: 0}
        for name, tensor in first.items():
            flat = tensor.ndim < 2
            self._names[flat].append(name)
            self._places[name] = (ends[flat], ends[flat] + tensor.numel())
            ends[flat] += tensor.numel()
        self._shapes = {name: tensor.shape for name, tensor in first.items()}
        self._only: Mapping[str, Tensor] = {}
        like = next(iter(first.values()), torch.empty(0))
        # Inference tensors could not be refilled outside inference mode.
        with torch.inference_mode(False):
            self._vectors = like.new_empty(capacity, ends[True])
            # The matrices of a single bank are not copied.
            self._matrices = {like.dtype: like.new_empty(capacity, ends[False])} if capacity > 1 else {}

    def fill(self, entries: Sequence[BankState]) -> None:
        """Fill the rows with these banks; a bank that is already in its row is not copied again."""
        # If copying is interrupted, the old key must not remain on a half-filled stack.
        before, self.key = self.key, ()
        self._only = entries[0].tensors if self.capacity == 1 else {}
        matrices = list(self._matrices.values())
        for row, entry in enumerate(entries):
            if before[row : row + 1] == (entry.serial,):
                continue
            _copy(entry, self._names[True], self._vectors[row])
            for made in matrices[:1]:
                _copy(entry, self._names[False], made[row])
            for cast in matrices[1:]:
                cast[row] = matrices[0][row]
        self.key = tuple(entry.serial for entry in entries)

    @property
    def num_bytes(self) -> int:
        """Number of bytes in memory, including the tensors of a single bank, which are not copied but kept alive."""
        return sum(t.nbytes for t in (self._vectors, *self._matrices.values(), *self._only.values()))

    @property
    def vectors(self) -> Tensor:
        """All vectors, one row per bank."""
        return self._vectors[: len(self.key)]

    def vector(self, name: str, vectors_NV: Tensor) -> Tensor:
        """Return one parameter ``(N, ...)`` from rows of `vectors`."""
        start, stop = self._places[name]
        return vectors_NV[:, start:stop]

    def matrix(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return one parameter of all banks ``(T, ...)``; all of them are cast together, once per dtype."""
        if not self._matrices:
            return self._only[name].detach().to(dtype).unsqueeze(0)
        if dtype not in self._matrices:
            with torch.inference_mode(False):
                self._matrices[dtype] = next(iter(self._matrices.values())).to(dtype)
        start, stop = self._places[name]
        return self._matrices[dtype][: len(self.key), start:stop].view(-1, *self._shapes[name])


def _copy(entry: BankState, names: Sequence[str], into: Tensor) -> None:
    if names:
        torch.cat([entry.tensors[name].detach().reshape(-1) for name in names], out=into)
