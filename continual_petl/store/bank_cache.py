"""Least-recently-used cache of banks in memory, limited to a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from continual_petl.backbones.attention_switch import attending
from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.attach import locked
from continual_petl.learner.task_bank import TaskBank
from continual_petl.store.certificate.certificate import Certificate

RESIDENT_BYTES = 2**30
"""Default memory limit for banks: about 500 banks of MiniLM with bottleneck size 48."""


@dataclass(frozen=True, kw_only=True)
class CachedBank(TaskBank):
    """One bank in memory with everything needed to predict with it: frozen, in eval mode, on the backbone's device."""

    plan: Certificate
    """Kept here so that the store does not have to read it again while the bank is in use."""
    seals: tuple[str, ...]
    """The seal of the task's certificate and, if the task predicts with a newer shared bank, the seal of that bank's
    certificate."""
    num_bytes: int

    @property
    def certificate(self) -> Certificate:
        """The certificate, which is a plan."""
        return self.plan

    @property
    def max_length(self) -> int:
        """Maximum tokens per row; 0 if the backbone reads images."""
        return self.certificate.max_length

    @contextmanager
    def attending(self) -> Iterator[Backbone]:
        """Use the attention implementation named in the certificate inside the block; other threads wait for their turn.

        Yields:
            The backbone with this attention implementation.
        """
        with locked(self.backbone.model), attending(self.backbone, self.certificate.environment.attention) as backbone:
            yield backbone


class BankCache:
    """Banks by name, most recently used last.

    Args:
        max_bytes: memory limit for all banks together, in bytes. One bank is always held, however large it is.

    Raises:
        ValueError: if ``max_bytes`` is negative.
    """

    def __init__(self, max_bytes: int) -> None:
        self._by_name: OrderedDict[str, CachedBank] = OrderedDict()
        self.num_bytes = 0
        """Bytes of all banks in the cache."""
        self.limit(max_bytes)

    def limit(self, max_bytes: int) -> None:
        """Set the memory limit for all banks together, and evict banks that no longer fit."""
        if max_bytes < 0:
            raise ValueError(
                f"resident_bytes: got {max_bytes}; it must be 0 or more: the number of bytes that banks may take up in "
                "memory; 0 keeps one bank"
            )
        self.max_bytes = max_bytes
        if self._by_name:
            name = next(reversed(self._by_name))
            self.put(name, self._by_name[name])

    def __len__(self) -> int:
        return len(self._by_name)

    def peek(self, name: str) -> CachedBank | None:
        """Return the bank of this name if it is cached, even if outdated; this does not count as a use."""
        return self._by_name.get(name)

    def get(self, name: str, seals: tuple[str, ...]) -> CachedBank | None:
        """Return a bank if it is cached with these seals; with other seals, it was replaced on disk and is dropped."""
        held = self._by_name.get(name)
        if held is None:
            return None
        if held.seals != seals:
            self.drop(name)
            return None
        self._by_name.move_to_end(name)
        return held

    def put(self, name: str, held: CachedBank, keep: Collection[str] = ()) -> None:
        """Add a bank, then evict the least recently used banks until the remaining ones fit; banks in ``keep`` stay."""
        self.drop(name)
        self._by_name[name] = held
        self.num_bytes += held.num_bytes
        for oldest in [cached for cached in self._by_name if cached not in keep and cached != name]:
            if self.num_bytes <= self.max_bytes:
                return
            self.drop(oldest)

    def drop(self, name: str) -> None:
        """Release a bank, if it is cached."""
        held = self._by_name.pop(name, None)
        if held is not None:
            self.num_bytes -= held.num_bytes

    def clear(self) -> None:
        """Release all banks."""
        self._by_name.clear()
        self.num_bytes = 0
