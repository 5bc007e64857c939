"""Pack the rows of a causal-lm task into windows, so that batches have hardly any padding.

Rows are placed by best fit, longest first: into the window with the least room that still holds the row (as in Ding et al.
2024, https://arxiv.org/abs/2404.10830). Windows are determined by the lengths alone, so **every epoch has the same number
of batches**, as `continual_petl.streams.batches.budget` explains. A window only fixes the lengths of its rows: in every
epoch, rows of equal length are shuffled among their places, and windows are shuffled into batches in the same way as unpacked
rows. So any epoch is a pure function of (seed, epoch), and a run can resume in the middle of one.

Shape legend: N rows.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from continual_petl.errors import InputError
from continual_petl.seeding import derive_seed
from continual_petl.streams.batches.batching import Batch, LengthBucketed


@dataclass(frozen=True, kw_only=True, eq=False)
class Packed:
    """The order of packed training batches.

    Args:
        lengths: tokens of each row, ``(N,)``, N at least 1.
        room: tokens that a window can hold.
        batch_size: maximum windows per batch.
        seed: determines the order, together with the epoch.
        max_tokens: maximum tokens per batch, padding included; None means no limit.

    Raises:
        InputError: if there are no rows, ``batch_size`` is below 1, or a row is longer than a window.

    Example:
        >>> order = Packed(lengths=np.array([3, 9, 3, 9]), room=12, batch_size=2, seed=0)
        >>> [[sorted(window.tolist()) for window in batch] for batch in order.epoch(0)]
        [[[0, 3], [1, 2]]]
    """

    lengths: NDArray[np.int64]
    room: int
    batch_size: int
    seed: int
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        longest = int(self.lengths.max(initial=0))
        if longest > self.room:
            raise InputError(
                f"training.packing: a row has {longest} tokens, but a window holds {self.room} (backbone.max_length, or "
                f"training.max_tokens if that is less): use at least {longest}, or truncate rows to fewer tokens."
            )
        assert len(self._order)

    def __len__(self) -> int:
        """Return the number of batches, which is the same in every epoch."""
        return len(self._order)

    @cached_property
    def _windows(self) -> list[Batch]:
        """The windows, each as positions in the order of decreasing length."""
        return pack(np.sort(self.lengths)[::-1], self.room)

    @cached_property
    def _order(self) -> LengthBucketed:
        falling = np.sort(self.lengths)[::-1]
        filled = np.array([falling[window].sum() for window in self._windows], dtype=np.int64)
        return LengthBucketed(lengths=filled, batch_size=self.batch_size, seed=self.seed, max_tokens=self.max_tokens)

    @property
    def num_windows(self) -> int:
        """Number of windows per epoch."""
        return len(self._windows)

    def epoch(self, epoch: int) -> list[list[Batch]]:
        """Return all batches of an epoch, in order: for each window, the indices of its rows."""
        rng = np.random.default_rng(derive_seed(self.seed, "packing", epoch))
        rows = rng.permutation(len(self.lengths))
        rows = rows[np.argsort(-self.lengths[rows], kind="stable")]
        return [[rows[self._windows[number]] for number in batch] for batch in self._order.epoch(epoch)]

    @property
    def fingerprint(self) -> str:
        """Hex digits that change with the lengths of windows, their capacity, the batch size, the budget and the seed."""
        return f"{self._order.fingerprint}-{self.room}"


def pack(falling: NDArray[np.int64], room: int) -> list[Batch]:
    """Divide positions in ``falling`` into windows by best fit; the lengths in a window add up to at most ``room``.

    Args:
        falling: lengths in decreasing order, ``(N,)``, none above ``room``.
        room: tokens that a window can hold.

    Example:
        >>> [window.tolist() for window in pack(np.array([6, 5, 4, 3, 2]), 10)]
        [[0, 2], [1, 3, 4]]
    """
    windows: list[list[int]] = []
    # The windows with room left, keyed by how much; of windows with the same room, the newest is used first.
    by_room: dict[int, list[int]] = {}
    rooms: list[int] = []
    for place, length in enumerate(falling.tolist()):
        found = bisect_left(rooms, max(1, length))
        if found == len(rooms):
            windows.append([])
            window, left = len(windows) - 1, room - length
        else:
            left = rooms[found] - length
            window = by_room[rooms[found]].pop()
            if not by_room[rooms[found]]:
                del by_room[rooms[found]], rooms[found]
        windows[window].append(place)
        if left > 0:
            if left not in by_room:
                insort(rooms, left)
            by_room.setdefault(left, []).append(window)
    return [np.array(window, dtype=np.int64) for window in windows]
