"""Banks in memory: as many as a budget of bytes allows; when it is used up, the one that was asked for longest ago goes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.learner.plan import TaskPlan

RESIDENT_BYTES = 2**30
"""Of banks in memory unless something else is said: some 500 of MiniLM with bottlenecks of 48."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """One bank in memory with what is needed to answer from it."""

    plan: TaskPlan
    bank: Bank
    """Frozen, in eval mode, on the backbone's device."""
    backbone: Backbone
    max_length: int
    """Tokens of a row; 0 where the backbone reads images."""
    preparation: str
    """Digest of tokenizer or image processing that the task was learned with."""
    written_in: int
    """Format version of its certificate."""
    made_of: tuple[str, ...]
    """Seals of the certificates of the bank, and of the shared bank whose body it answers with."""
    num_bytes: int


class HeldBanks:
    """Banks by name, the one that was asked for last at the end.

    Args:
        most: bytes of all banks together. One bank is always held, however large it is.

    Raises:
        ValueError: if ``most`` is negative.
    """

    def __init__(self, most: int) -> None:
        self._by_name: OrderedDict[str, Held] = OrderedDict()
        self.num_bytes = 0
        """Of all that is held."""
        self.limit(most)

    def limit(self, most: int) -> None:
        """Set how many bytes all banks may take together, and let go of those that are too many."""
        if most < 0:
            raise ValueError(
                f"resident_bytes: got {most}; give the bytes that banks in memory may take; 0 holds one bank"
            )
        self.most = most
        if self._by_name:
            name = next(reversed(self._by_name))
            self.put(name, self._by_name[name])

    def __len__(self) -> int:
        return len(self._by_name)

    def peek(self, name: str) -> Held | None:
        """Return a bank if one of this name is held, whatever it is made of; nothing is noted of it."""
        return self._by_name.get(name)

    def get(self, name: str, made_of: tuple[str, ...]) -> Held | None:
        """Return a bank if it is held, and still made of these certificates; one that was replaced on disk is dropped."""
        held = self._by_name.get(name)
        if held is None:
            return None
        if held.made_of != made_of:
            self.drop(name)
            return None
        self._by_name.move_to_end(name)
        return held

    def put(self, name: str, held: Held, keep: Collection[str] = ()) -> None:
        """Hold a bank, and let go of those that were asked for longest ago until all others fit; ``keep`` stays."""
        self.drop(name)
        self._by_name[name] = held
        self.num_bytes += held.num_bytes
        for oldest in [other for other in self._by_name if other not in keep and other != name]:
            if self.num_bytes <= self.most:
                return
            self.drop(oldest)

    def drop(self, name: str) -> None:
        """Let go of a bank, if it is held."""
        held = self._by_name.pop(name, None)
        if held is not None:
            self.num_bytes -= held.num_bytes

    def clear(self) -> None:
        """Let go of all banks."""
        self._by_name.clear()
        self.num_bytes = 0
