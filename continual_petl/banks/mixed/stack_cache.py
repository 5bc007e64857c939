"""Stacks the parameters of several banks of one type, and caches the most recently used stacks.

Caching pays off because successive batches and calls often use the same banks.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.bank_stack import BankStack, BankState

_T = TypeVar("_T")
MAX_BYTES = 256 * 2**20
"""Maximum number of bytes kept between passes; one pass may need more."""
_STEP = 8
"""The capacity of a stack is a multiple of this, so that it can be refilled with a few more or fewer banks."""
_ARITHMETIC = (
    *("form", "modifies", "insertion", "composition", "bottleneck", "activation", "depth", "input_norm"),
    *("output_norm", "normalised_input", "implementation"),
)
"""The options that determine the computation of a modification; other options only affect its parameters or training."""
_serials = itertools.count()


def arithmetic(modification: Modification) -> tuple[Hashable, ...]:
    """Return a key that is equal for two modifications with the same computation, regardless of their parameters."""
    scale = modification.scale if modification.composition == "scaled" else None
    return (*(getattr(modification, name) for name in _ARITHMETIC), scale)


def _version(tensors: Mapping[str, Tensor]) -> tuple[int, torch.device]:
    """Return a value that changes when a bank's parameters are changed in place or moved."""
    if not tensors:
        return 0, torch.device("cpu")
    try:
        return sum(t._version for t in tensors.values()), next(iter(tensors.values())).device
    except RuntimeError:  # inference tensors have no version counter: assume a change every time
        return next(_serials), torch.device("cpu")


def _replaced(entry: BankState) -> bool:
    """Return whether other objects have replaced parameters of a bank, which version counters do not show."""
    return any(parameters.get(name) is not tensor for parameters, name, tensor in entry.owners)


class StackCache:
    """Stacks banks and caches the most recently used stacks.

    Args:
        max_bytes: limit on the size of the cache.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._entries: WeakKeyDictionary[Bank, BankState] = WeakKeyDictionary()
        self._values: WeakKeyDictionary[Bank, Any] = WeakKeyDictionary()
        self._kept: OrderedDict[Hashable, list[BankStack]] = OrderedDict()
        self._lock = threading.Lock()

    def once(self, bank: Bank, compute: Callable[[Bank], _T]) -> _T:
        """Return ``compute(bank)``, computed once per bank."""
        if bank not in self._values:
            self._values[bank] = compute(bank)
        value: _T = self._values[bank]
        return value

    def kind(self, bank: Bank) -> Hashable:
        """Return a key shared by the banks that fit into one stack: same computation, same sites, same tensor layout."""
        with self._lock:
            return self._entry(bank).kind

    @contextmanager
    def stack(self, banks: Sequence[Bank]) -> Iterator[BankStack]:
        """Yield the stack of banks of one type, in order, with the current values of their parameters.

        Its contents may be overwritten after the block.
        """
        with self._lock:
            entries = [self._entry(bank) for bank in banks]
            bank_stack = self._find(entries)
            bank_stack.num_users += 1
        try:
            yield bank_stack
        finally:
            with self._lock:
                bank_stack.num_users -= 1

    def _find(self, entries: Sequence[BankState]) -> BankStack:
        kind, key = entries[0].kind, tuple(entry.serial for entry in entries)
        mine = self._kept.setdefault(kind, [])
        stack = next((stack for stack in mine if stack.key == key), None)
        if stack is None:
            # Reusing memory is several times faster than allocating new memory, since the system zeroes new memory.
            idle = [stack for stack in mine if not stack.num_users and len(key) <= stack.capacity and len(key) > 1]
            full = self.num_bytes > self.max_bytes / 2
            stack = (
                idle[0]
                if full and idle
                else BankStack(entries[0].tensors, -(-len(key) // _STEP) * _STEP if len(key) > 1 else 1)
            )
            stack.fill(entries)
        if stack in mine:
            mine.remove(stack)
        mine.append(stack)
        self._kept.move_to_end(kind)
        self._drop(stack)
        return stack

    def clear(self) -> None:
        """Drop all cached stacks."""
        with self._lock:
            self._kept.clear()

    @property
    def num_bytes(self) -> int:
        """Number of bytes of all cached stacks."""
        return sum(stack.num_bytes for mine in self._kept.values() for stack in mine)

    @property
    def num_users(self) -> int:
        """Number of blocks that are using a stack."""
        return sum(stack.num_users for mine in self._kept.values() for stack in mine)

    def _drop(self, but: BankStack) -> None:
        """Drop the least recently used stacks until the remaining ones are within the limit."""
        for kind, mine in list(self._kept.items()):
            for stack in list(mine):
                if self.num_bytes <= self.max_bytes:
                    return
                if stack is not but and not stack.num_users:
                    mine.remove(stack)
            if not mine:
                del self._kept[kind]

    def _entry(self, bank: Bank) -> BankState:
        entry = self._entries.get(bank)
        if entry is None or entry.version != _version(entry.tensors) or _replaced(entry):
            tensors, owners = {}, []
            for path, module in bank.named_modules():
                for name, tensor in module.named_parameters(path, recurse=False):
                    if not name.startswith("head."):
                        tensors[name] = tensor
                        owners.append((module._parameters, name.rpartition(".")[2], tensor))
            operations = tuple(arithmetic(m) for m in bank.spec.modifications if not m.config.copies)
            # Tensors on different devices or of different dtypes cannot share a stack.
            alike = tuple((name, t.shape, t.dtype, t.device) for name, t in tensors.items())
            entry = BankState(tensors, owners, _version(tensors), next(_serials), (operations, alike))
            self._entries[bank] = entry
        return entry


_of_model: WeakKeyDictionary[nn.Module, StackCache] = WeakKeyDictionary()


def stacks_of(model: nn.Module) -> StackCache:
    """Return the stacks of the banks of a backbone."""
    return _of_model.setdefault(model, StackCache())
