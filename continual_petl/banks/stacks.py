"""The parameters of several like banks side by side: one row of a matrix for each bank.

A row holds all of a bank's parameters but those of its head, vectors in one matrix and the rest in another, so to bring
banks together is one copy a bank, and every parameter of all of them is a view ``(T, ...)``. What was brought together is
kept for a while, since batches of one call, and of the next, are often of the same banks.

Shape suffixes: T banks.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from continual_petl.banks.bank import Bank
from continual_petl.banks.spec import Modification

_T = TypeVar("_T")
MAX_BYTES = 256 * 2**20
"""Of what is kept; whatever one pass needs is made anyway."""
_STEP = 8
"""Room for banks comes in steps, so that a stack can be filled again with somewhat more or fewer."""
_ARITHMETIC = (
    *("form", "modifies", "insertion", "composition", "bottleneck", "activation", "depth", "input_norm"),
    *("output_norm", "normalised_input", "implementation"),
)
"""What of a modification decides how it computes; the rest is said by its parameters, or is of training only."""
_serials = itertools.count()


def arithmetic(modification: Modification) -> tuple[Hashable, ...]:
    """Return what two modifications share that compute alike, whatever their parameters are."""
    scale = modification.scale if modification.composition == "scaled" else None
    return (*(getattr(modification, name) for name in _ARITHMETIC), scale)


class _Entry(NamedTuple):
    """What is known of one bank in its present state."""

    tensors: Mapping[str, Tensor]
    owners: Sequence[tuple[Mapping[str, Any], str, Tensor]]
    """Where the bank has each of them: the parameters of a module, and the name among those."""
    version: tuple[int, torch.device]
    serial: int
    """Of this state of this bank; no other has it."""
    kind: Hashable


def _version(tensors: Mapping[str, Tensor]) -> tuple[int, torch.device]:
    """Return what changes when a bank's parameters are changed in place or moved."""
    if not tensors:
        return 0, torch.device("cpu")
    try:
        return sum(t._version for t in tensors.values()), next(iter(tensors.values())).device
    except RuntimeError:  # made in inference mode, where nobody counts changes: a new state every time
        return next(_serials), torch.device("cpu")


def _replaced(entry: _Entry) -> bool:
    """Return whether a bank has others in the place of its parameters; these tell of no change."""
    return any(parameters.get(name) is not tensor for parameters, name, tensor in entry.owners)


class Stack:
    """The parameters of banks of one kind.

    Args:
        first: the parameters of one of them by name; the others have the same names and shapes.
        most: how many banks there is room for.
    """

    def __init__(self, first: Mapping[str, Tensor], most: int) -> None:
        self.most = most
        self.key: tuple[int, ...] = ()
        """Serials of the banks that it holds."""
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
        # Tensors of inference mode could not be filled again outside of it.
        with torch.inference_mode(False):
            self._vectors = like.new_empty(most, ends[True])
            # The matrices of a single bank stay where they are.
            self._matrices = {like.dtype: like.new_empty(most, ends[False])} if most > 1 else {}

    def fill(self, entries: Sequence[_Entry]) -> None:
        """Hold these banks; what already lies in its row is not copied again."""
        # If copying is broken off, nobody shall take this for what it was.
        before, self.key = self.key, ()
        self._only = entries[0].tensors if self.most == 1 else {}
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
        """Bytes of all that is held; the tensors of a single bank too, which stay in memory with it."""
        return sum(t.nbytes for t in (self._vectors, *self._matrices.values(), *self._only.values()))

    @property
    def vectors(self) -> Tensor:
        """All vectors, one bank a row."""
        return self._vectors[: len(self.key)]

    def vector(self, name: str, vectors_NV: Tensor) -> Tensor:
        """Return one vector ``(N, ...)`` out of rows of `vectors`."""
        start, stop = self._places[name]
        return vectors_NV[:, start:stop]

    def matrix(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return one matrix of all banks ``(T, ...)``; all are cast at once, and once."""
        if not self._matrices:
            return self._only[name].detach().to(dtype).unsqueeze(0)
        if dtype not in self._matrices:
            with torch.inference_mode(False):
                self._matrices[dtype] = next(iter(self._matrices.values())).to(dtype)
        start, stop = self._places[name]
        return self._matrices[dtype][: len(self.key), start:stop].view(-1, *self._shapes[name])


def _copy(entry: _Entry, names: Sequence[str], into: Tensor) -> None:
    if names:
        torch.cat([entry.tensors[name].detach().reshape(-1) for name in names], out=into)


class Stacks:
    """Makes stacks of banks and keeps the last ones.

    Args:
        max_bytes: of what is kept.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._entries: WeakKeyDictionary[Bank, _Entry] = WeakKeyDictionary()
        self._looks: WeakKeyDictionary[Bank, Any] = WeakKeyDictionary()
        self._kept: OrderedDict[Hashable, list[Stack]] = OrderedDict()
        self._lock = threading.Lock()

    def once(self, bank: Bank, look: Callable[[Bank], _T]) -> _T:
        """Return what a look at a bank found, the first time it was looked at."""
        if bank not in self._looks:
            self._looks[bank] = look(bank)
        found: _T = self._looks[bank]
        return found

    def kind(self, bank: Bank) -> Hashable:
        """Return what banks have in common that one stack can hold: what they compute, where, and how their tensors lie."""
        with self._lock:
            return self._entry(bank).kind

    @contextmanager
    def stack(self, banks: Sequence[Bank]) -> Iterator[Stack]:
        """Return the stack of banks of one kind, in order, with the values that their parameters have now.

        What it holds may be overwritten when the block has ended.
        """
        with self._lock:
            entries = [self._entry(bank) for bank in banks]
            found = self._find(entries)
            found.num_users += 1
        try:
            yield found
        finally:
            with self._lock:
                found.num_users -= 1

    def _find(self, entries: Sequence[_Entry]) -> Stack:
        kind, key = entries[0].kind, tuple(entry.serial for entry in entries)
        mine = self._kept.setdefault(kind, [])
        found = next((stack for stack in mine if stack.key == key), None)
        if found is None:
            # Memory that was written before is filled several times as fast as new memory, which the system has to clear.
            idle = [stack for stack in mine if not stack.num_users and len(key) <= stack.most and len(key) > 1]
            full = self.num_bytes > self.max_bytes / 2
            found = (
                idle[0]
                if full and idle
                else Stack(entries[0].tensors, -(-len(key) // _STEP) * _STEP if len(key) > 1 else 1)
            )
            found.fill(entries)
        if found in mine:
            mine.remove(found)
        mine.append(found)
        self._kept.move_to_end(kind)
        self._drop(found)
        return found

    @property
    def num_bytes(self) -> int:
        """Bytes of all that is kept."""
        return sum(stack.num_bytes for mine in self._kept.values() for stack in mine)

    @property
    def num_users(self) -> int:
        """Number of blocks that hold a stack now."""
        return sum(stack.num_users for mine in self._kept.values() for stack in mine)

    def _drop(self, but: Stack) -> None:
        """Let go of what was used longest ago, until the rest is within the limit."""
        for kind, mine in list(self._kept.items()):
            for stack in list(mine):
                if self.num_bytes <= self.max_bytes:
                    return
                if stack is not but and not stack.num_users:
                    mine.remove(stack)
            if not mine:
                del self._kept[kind]

    def _entry(self, bank: Bank) -> _Entry:
        entry = self._entries.get(bank)
        if entry is None or entry.version != _version(entry.tensors) or _replaced(entry):
            tensors, owners = {}, []
            for path, module in bank.named_modules():
                for name, tensor in module.named_parameters(path, recurse=False):
                    if not name.startswith("head."):
                        tensors[name] = tensor
                        owners.append((module._parameters, name.rpartition(".")[2], tensor))
            what = tuple(arithmetic(m) for m in bank.spec.modifications if not m.config.copies)
            # Tensors of another device or dtype would be copied into memory that is not of theirs.
            alike = tuple((name, t.shape, t.dtype, t.device) for name, t in tensors.items())
            entry = _Entry(tensors, owners, _version(tensors), next(_serials), (what, alike))
            self._entries[bank] = entry
        return entry
