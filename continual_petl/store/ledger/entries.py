"""What the lines of a ledger say: the entries of the chain, the learned tasks, and what was dropped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from continual_petl.errors import StoreError
from continual_petl.store.ledger.ledger_file import Mark, Sealed
from continual_petl.store.ledger.lines import CommitLine, Entry, ForgetLine, SignatureLine

_RESULTS = b'{"type": "row"', b'{"type": "finished"'
"""How lines begin that are not needed to know what is learned; they are parsed only when results are asked for."""


@dataclass(frozen=True)
class Tombstone:
    """One commit that was dropped from the run."""

    task: str
    why: str
    """``forgotten``, ``replaced`` or ``lost``."""
    index: int
    """Position in the chain of the entry that dropped it."""
    seal: str
    """Seal of that entry."""
    removed: CommitLine
    """The dropped commit."""


@dataclass
class Entries:
    """The chain up to a position in the ledger."""

    mark: Mark = field(default_factory=Mark)
    """The position."""
    chain: list[Entry] = field(default_factory=list)
    """All entries, each at its position."""
    live: dict[str, CommitLine] = field(default_factory=dict)
    """Commits of the learned tasks, in the order they were learned."""
    tombstones: list[Tombstone] = field(default_factory=list)
    lost: dict[str, CommitLine] = field(default_factory=dict)
    """Commits that were dropped because their banks were missing; each counts again while its bank is there."""
    signature: SignatureLine | None = None
    """The newest signature."""
    signed_after: str = ""
    """Seal of the line before it."""

    @property
    def head(self) -> Entry | None:
        """The newest entry, which the next one names as its predecessor."""
        return self.chain[-1] if self.chain else None

    @property
    def next(self) -> tuple[int, str | None]:
        """Position and predecessor of the next entry."""
        return len(self.chain), None if self.head is None else self.head.seal

    def copy(self) -> Self:
        """Return a copy that does not change when lines are added to this one."""
        chain, live, tombstones, lost = [*self.chain], {**self.live}, [*self.tombstones], {**self.lost}
        return type(self)(self.mark, chain, live, tombstones, lost, self.signature, self.signed_after)

    def read(self, lines: Iterable[Sealed]) -> None:
        """Add lines of the file.

        Raises:
            StoreError: if one of them does not continue the chain.
        """
        for sealed in lines:
            if not sealed.content.startswith(_RESULTS):
                self.add(sealed.parsed(), sealed.where)
            self.mark = sealed.after

    def add(self, line: object, where: str) -> None:
        """Add one line, other than a result.

        Raises:
            StoreError: if it does not continue the chain.
        """
        if isinstance(line, SignatureLine):
            self.signature, self.signed_after = line, self.mark.seal
        elif isinstance(line, CommitLine):
            self._check(line, where)
            back = self.lost.pop(line.task, None) if line.replaces is not None else None
            old = self.live.pop(line.task, back)
            self.lost.pop(line.task, None)
            if (None if old is None else old.removed) != line.replaces:
                raise _contradicts(where, f"task {line.task!r} is learned twice, or replaces a bank that is not there")
            if old is not None:
                self.tombstones.append(Tombstone(line.task, "replaced", line.index, line.seal, old))
            self.live[line.task] = line
            self.chain.append(line)
        elif isinstance(line, ForgetLine):
            self._check(line, where)
            old = self.live.get(line.task) or self.lost.get(line.task)
            if old is None or old.removed != line.removed:
                raise _contradicts(where, f"it drops a bank of task {line.task!r} that is not there")
            self.live.pop(line.task, None)
            self.lost.pop(line.task, None)
            if line.why == "lost":
                self.lost[line.task] = old
            self.tombstones.append(Tombstone(line.task, line.why, line.index, line.seal, old))
            self.chain.append(line)

    def _check(self, line: Entry, where: str) -> None:
        if (line.index, line.predecessor) != self.next:
            raise _contradicts(
                where,
                f"it is entry {line.index} of a chain and names the predecessor {str(line.predecessor)[:12]}, but entry "
                f"{self.next[0]} with predecessor {str(self.next[1])[:12]} comes next",
            )


def _contradicts(where: str, why: str) -> StoreError:
    return StoreError(f"{where}: {why}; the file was edited, or comes from another run. Restore it from a copy.")
