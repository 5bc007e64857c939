"""The iterables from which Lightning draws batches; the training loader can resume in the middle of an epoch.

These are plain iterables, not ``torch.utils.data.DataLoader``: rows are already token ids in memory, so one process
builds a batch in well under a millisecond, and a ``DataLoader`` would draw a number from the global random state at
the start of every epoch. With ``num_workers``, a ``DataLoader`` is used internally, with its own generator.

**Exact resuming.** Lightning saves how many batches it has finished and continues counting from there. The loader asks
Lightning for that position when the first batch is drawn, instead of keeping a count: a batch that was drawn but not
finished (the process died inside ``training_step``) is drawn again, and the epoch ends where Lightning ends it, even with
``limit_train_batches``. The state in the checkpoint is used to check that the order of batches is still the same.

Based on lightning 2.6.6: ``loops/fit_loop.py`` (``setup_data``, ``on_advance_start``), ``loops/training_epoch_loop.py``
(``reset``, ``on_run_start``, ``advance``), ``loops/fetchers.py`` (a loader with a length is never prefetched).

**Several devices.** Lightning does not shard plain iterables, so each process selects its share of the batches here. In
training, all shares have the same length: the first batches are repeated as needed, only so that every process takes part in
every step (`continual_petl.learner.windows` gives them no weight). In evaluation, no batch is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from continual_petl.errors import InputError, counted
from continual_petl.streams.batches.batching import Batch, LengthBucketed, evaluation_batches
from continual_petl.streams.batches.collate import collate, collate_packed
from continual_petl.streams.batches.packing import Packed
from continual_petl.streams.encoding.rows import TokenisedRows

Place = tuple[int, int]
"""(epoch, number of finished batches of this epoch)"""


@dataclass(frozen=True)
class Share:
    """Which of the batches this process makes, and with how many workers."""

    rank: int = 0
    """Rank of this process."""
    world_size: int = 1
    """Number of processes that share the batches."""
    num_workers: int = 0
    """Processes that build batches; 0 builds them in this process."""

    def __post_init__(self) -> None:
        """Check the number of workers."""
        if self.num_workers < 0:
            raise InputError(f"training.num_workers: got {self.num_workers}; it must be 0 or more.")


class TrainLoader:
    """Training batches, epoch after epoch. Implements Lightning's protocol for stateful loaders.

    Args:
        rows: the training split.
        order: which rows make up each batch and, if rows are packed, which of them share a window.
        pad_token_id: see `collate`.
        kind: the kind of the task.
        share: which of the batches this process makes.
        place: called when an iteration starts; returns where to start, or ``None`` to use the loader's own count (every
            iteration is one epoch, and only the first after ``load_state_dict`` starts in the middle).
    """

    def __init__(
        self,
        rows: TokenisedRows,
        order: LengthBucketed | Packed,
        pad_token_id: int,
        *,
        kind: str = "classification",
        share: Share = Share(),
        place: Callable[[], Place | None] = lambda: None,
    ) -> None:
        self.rows = rows
        self.order = order
        self.rank, self.world_size = share.rank, share.world_size
        make = partial(collate_packed, rows, pad_token_id=pad_token_id)
        if isinstance(order, LengthBucketed):
            make = partial(collate, rows, pad_token_id=pad_token_id, kind=kind, train=True)
        self._make = _Maker(make, share.num_workers)
        self._place = place
        self._seen: Place = (0, 0)
        self._next: Place = (0, 0)
        self._made: tuple[int, Sequence[Batch | list[Batch]]] = (-1, ())

    def __len__(self) -> int:
        return -(-len(self.order) // self.world_size)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        # A generator: none of this runs before the first batch is drawn. Lightning calls iter() during setup, before
        # its counters are in place.
        epoch, done = self._place() or self._next
        if done >= len(self):
            epoch, done = epoch + 1, 0
        self._next = (epoch + 1, 0)
        for number, batch in enumerate(self._make(self._share(epoch)[done:]), start=done + 1):
            self._seen = (epoch, number)
            yield batch

    @property
    def epoch(self) -> int:
        """The epoch of the last batch drawn."""
        return self._seen[0]

    def batches(self, epoch: int) -> Sequence[Batch | list[Batch]]:
        """Return which rows make up each batch of an epoch, over all processes: batch n belongs to process n modulo their
        number. A batch of packed rows is a list of windows.
        """
        if self._made[0] != epoch:
            self._made = (epoch, self.order.epoch(epoch))
        return self._made[1]

    def _share(self, epoch: int) -> Sequence[Batch | list[Batch]]:
        batches = self.batches(epoch)
        wanted = range(self.rank, len(self) * self.world_size, self.world_size)
        return [batches[position % len(batches)] for position in wanted]

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the last batch drawn, and the fingerprint of the order of batches."""
        epoch, batches = self._seen
        return {"epoch": epoch, "batches": batches, "order": self.order.fingerprint, "world_size": self.world_size}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a saved position.

        Raises:
            InputError: if the checkpoint was saved with different rows, batch size, budget, seed or number of processes.
        """
        for key, ours in (("order", self.order.fingerprint), ("world_size", self.world_size)):
            if state_dict[key] != ours:
                raise InputError(
                    f"checkpoint: its training batches ({key} {state_dict[key]}) are not those of this run ({ours}): "
                    "the data, max_length, batch_size, max_tokens, packing, seed or number of devices has changed since it "
                    "was saved. Restore them, or delete the checkpoint to learn the task from the start."
                )
        self._seen = self._next = (int(state_dict["epoch"]), int(state_dict["batches"]))


class EvaluationLoader:
    """Batches by decreasing length, the same in every pass.

    Args:
        rows: a split.
        batch_size: maximum rows per batch.
        pad_token_id: see `collate`.
        kind: the kind of the task.
        share: which of the batches this process makes.
        max_tokens: maximum tokens per batch, padding included; None means no limit.
    """

    def __init__(
        self,
        rows: TokenisedRows,
        batch_size: int,
        pad_token_id: int,
        *,
        kind: str = "classification",
        share: Share = Share(),
        max_tokens: int | None = None,
    ) -> None:
        self.rows = rows
        self._batches = _shared(rows, batch_size, max_tokens, share.world_size)[share.rank :: share.world_size]
        make = partial(collate, rows, pad_token_id=pad_token_id, kind=kind, train=False)
        self._make = _Maker(make, share.num_workers)

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return self._make(self._batches)


def _shared(rows: TokenisedRows, batch_size: int, max_tokens: int | None, world_size: int) -> list[Batch]:
    """Return the batches of a split, at least one per process: Lightning would leave out a process that has none."""
    batches = evaluation_batches(rows.lengths, batch_size, max_tokens)
    if len(batches) >= world_size:
        return batches
    if len(rows) < world_size:
        raise InputError(
            f"a split has {counted(len(rows), 'row')}, too few for the {world_size} processes that share it: give it "
            "at least one row per process, or use fewer devices."
        )
    return evaluation_batches(rows.lengths, len(rows) // world_size, max_tokens)


class _Maker:
    """Turns lists of row indices into batches, in this process or in workers."""

    def __init__(self, make: Callable[[Any], dict[str, Tensor]], num_workers: int) -> None:
        self._collate = make
        self._num_workers = num_workers

    def __call__(self, batches: Sequence[Batch | list[Batch]]) -> Iterator[dict[str, Tensor]]:
        if self._num_workers == 0 or not batches:
            return map(self._collate, batches)
        loader: DataLoader[dict[str, Tensor]] = DataLoader(
            _Batches(batches, self._collate),
            batch_size=None,
            num_workers=min(self._num_workers, len(batches)),
            generator=torch.Generator().manual_seed(0),  # not used by workers; keeps the global random state untouched
        )
        return iter(loader)


class _Batches(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self, batches: Sequence[Batch | list[Batch]], make: Callable[[Any], dict[str, Tensor]]) -> None:
        self._batches, self._make = batches, make

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, position: int) -> dict[str, Tensor]:
        return self._make(self._batches[position])
