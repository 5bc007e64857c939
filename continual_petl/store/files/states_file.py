"""Hidden states of a split's rows in one memory-mapped file: row after row, without padding, in the backbone's dtype.

Next to it is a small JSON file, its card, written last: the digest of everything the states depend on (rows, backbone, layer
and batches), their size in bytes, and their digest. If there is no card, or it does not match, the file is written again, so
an interrupted write or a foreign file does no harm. Row positions are computed from the rows' lengths, which the reader
knows, never read from the file.

Shape suffixes: N rows of the split, B rows of a batch, T tokens, D width of the states.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from continual_petl.digests import file_digest
from continual_petl.errors import StoreError
from continual_petl.store.files.atomic import make_folder, replacing, write_json

_FORMAT = 1
_MAX_CARD = 4096
_AS_NUMPY: dict[torch.dtype, type[np.float32 | np.int16]] = {
    torch.float32: np.float32,
    torch.bfloat16: np.int16,
    torch.float16: np.int16,
}
"""The numpy dtype in the file. numpy has no bfloat16, so 16-bit floats are stored as the integers with the same bits."""

Write = Callable[[NDArray[np.int64], Tensor], None]
"""Takes row indices (B,) and the rows' states (B, T, D), padded on the right."""


class StatesFile:
    """The states of one split.

    Args:
        path: the file; its card is next to it.
        lengths: number of tokens in each row, ``(N,)``.
        width: width of the states.
        dtype: dtype of the states.
        bound: digest of everything the states depend on.
    """

    def __init__(self, path: Path, lengths: NDArray[np.int64], width: int, dtype: torch.dtype, bound: str) -> None:
        self.path, self.bound = path, bound
        self._card = path.with_suffix(".json")
        self._starts_N = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._width, self._dtype = width, dtype
        self._states: Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """Size of the file in bytes."""
        return num_bytes(int(self._starts_N[-1]), self._width, self._dtype)

    def open(self) -> bool:
        """Map the file; if there is none, or it does not match its card, remove it and return False."""
        if self._fits():
            self._map()
            return True
        self.remove()
        return False

    def fill(self, make: Callable[[Write], None]) -> None:
        """Write the file and map it.

        Args:
            make: gets a function that writes rows, and has to call it until every row is written.

        Raises:
            StoreError: if any step fails, for example on a full disk; no partial file is left.
            ValueError: if a row is missing, or has a different length.
        """
        make_folder(self.path.parent)
        self.remove()
        try:
            with replacing(self.path) as beside:
                self._write(beside, make)
            card = {"format": _FORMAT, "bound": self.bound, "bytes": self.num_bytes, "sha256": file_digest(self.path)}
            write_json(self._card, card)
        except StoreError as error:
            self.remove()
            raise StoreError(
                f"{error} This file holds hidden states of the frozen backbone, {self.num_bytes:,} bytes, while the task is "
                "being learned; `training.prefix_cache: off` avoids it, and `training.prefix_cache_bytes` limits its size."
            ) from error
        self._map()

    def remove(self) -> None:
        """Remove the card, then the file and any unfinished files of killed processes."""
        self._states = None
        self._card.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)
        for stale in self.path.parent.glob(f".{glob.escape(self.path.stem)}.*.new"):
            stale.unlink(missing_ok=True)

    def read(self, index_B: NDArray[np.int64], num_tokens: int) -> Tensor:
        """Return the states of the given rows, padded with zeros on the right.

        Args:
            index_B: row indices.
            num_tokens: number of tokens (T) of the result.

        Shape:
            ``(B, T, D)``.

        Raises:
            ValueError: if a row is longer than ``num_tokens``, or does not exist.
        """
        assert self._states is not None, "the file is mapped by open or fill"
        if index_B.min(initial=0) < 0 or index_B.max(initial=-1) >= len(self._starts_N) - 1:
            raise ValueError(
                f"rows {index_B.tolist()}: not all of them are among the split's {len(self._starts_N) - 1} rows"
            )
        states_BTD = torch.zeros(len(index_B), num_tokens, self._width, dtype=self._dtype)
        for row, number in enumerate(index_B.tolist()):
            start, end = self._starts_N[number : number + 2].tolist()
            if end - start > num_tokens:
                raise ValueError(f"row {number} has {end - start} tokens, which is more than {num_tokens}")
            states_BTD[row, : end - start] = self._states[start:end]
        return states_BTD

    def close(self) -> None:
        """Close the file."""
        self._states = None

    def _write(self, beside: Path, make: Callable[[Write], None]) -> None:
        written_N = np.zeros(len(self._starts_N) - 1, dtype=np.bool_)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

        def write(index_B: NDArray[np.int64], states_BTD: Tensor) -> None:
            for number, states_TD in zip(index_B.tolist(), states_BTD.detach().to("cpu"), strict=True):
                start, end = self._starts_N[number : number + 2].tolist()
                if states_TD.dtype != self._dtype or states_TD.shape[1] != self._width or len(states_TD) < end - start:
                    raise ValueError(
                        f"row {number}: got states {tuple(states_TD.shape)} of {states_TD.dtype}, expected "
                        f"{(end - start, self._width)} of {self._dtype}"
                    )
                content = states_TD[: end - start].contiguous().view(torch.uint8).numpy().data
                _write_at(descriptor, content.cast("B"), num_bytes(start, self._width, self._dtype))
                written_N[number] = True

        try:
            make(write)
            if not written_N.all():
                raise ValueError(f"{self.path}: {np.count_nonzero(~written_N)} rows were never written")
            os.fsync(descriptor)
        finally:
            with suppress(OSError):
                os.close(descriptor)

    def _map(self) -> None:
        # Copy-on-write: torch has no read-only tensors, and the file stays unchanged.
        shape = (int(self._starts_N[-1]), self._width)
        mapped: NDArray[Any] = np.memmap(self.path, dtype=_AS_NUMPY[self._dtype], mode="c", shape=shape)
        self._states = torch.from_numpy(mapped).view(self._dtype)

    def _fits(self) -> bool:
        """Return whether file and card match; sizes are checked before anything is read or mapped."""
        try:
            if not all(path.is_file() and not path.is_symlink() for path in (self.path, self._card)):
                return False
            if self._card.stat().st_size > _MAX_CARD:
                return False
            if self.path.stat().st_size != self.num_bytes:
                return False
            card: Any = json.loads(self._card.read_bytes())
            expected = {"format": _FORMAT, "bound": self.bound, "bytes": self.num_bytes}
            if not isinstance(card, dict) or {key: card.get(key) for key in expected} != expected:
                return False
            return bool(card.get("sha256") == file_digest(self.path))
        except (OSError, ValueError, RecursionError):
            return False


def num_bytes(num_tokens: int, width: int, dtype: torch.dtype) -> int:
    """Return the size in bytes of the states of this many tokens."""
    return num_tokens * width * dtype.itemsize


def _write_at(descriptor: int, content: memoryview, offset: int) -> None:
    while content:
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written
