"""The chain: certificates and tombstones in the order they were written, each naming its predecessor.

Removing, reordering or editing a task breaks the chain, and so does removing a tombstone. The chain alone cannot show that
its newest entries were all cut off: `continual_petl.store.folder.missing_entries` detects that by comparing it with
``results.jsonl``. Anyone who has noted the newest entry's seal can detect this too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from continual_petl._strict_model import StrictModel
from continual_petl.banks.config.presets import in_short, in_words, preset_of
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.certificate.tombstone import Removed, Tombstone
from continual_petl.store.certificate.values import Digest, Index


class Link(StrictModel, strict=True):
    """What the chain and lists of tasks need to know about an entry; much smaller than a certificate."""

    index: Index
    seal: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]
    """Empty if the entry was missing when it was dropped and its seal is unknown."""
    predecessor: Digest | None
    task: str
    shared: bool = False
    """Whether the task's bank is shared and so keeps changing as later tasks are learned."""
    tombstone: bool = False
    lost: bool = False
    """Whether this is a tombstone for an entry that was missing when it was dropped. Its predecessor may have been missing
    too, so the chain is not broken if the entry names no predecessor."""
    aside: bool = False
    """Whether it was dropped from a fork: another entry has the same position in the chain."""
    kind: str = ""
    """This and everything below is left empty for entries that are not certificates of learned tasks."""
    metric: str = ""
    score: float | None = None
    """Score on the reported split, just after the task was learned; None if undefined."""
    split: Literal["validation", "test"] = "validation"
    """The reported split."""
    errors: Mapping[str, float] = {}
    """Errors of a regression on this split; see `Certificate.errors`."""
    parameters: Mapping[str, int] = {}
    """Number of parameters by part."""
    digest: str = ""
    """Digest of the bank's tensors."""
    preset: str | None = None
    """Name of the bank's preset; None if it matches none."""
    bank: str = ""
    """Description of the bank."""
    short: str = ""
    """Short description of the bank."""


def link_of(certificate: Certificate) -> Link:
    """Return the link of a certificate."""
    bank = certificate.bank
    same = ("index", "seal", "predecessor", "task", "kind", "metric", "score", "errors", "parameters", "digest")
    return Link(
        **{name: getattr(certificate, name) for name in same},
        shared=bank.scope == "shared",
        split=certificate.counted_split,
        preset=preset_of(bank),
        bank=in_words(bank),
        short=in_short(bank),
    )


def whole(links: Sequence[Link], tombstones: Sequence[Tombstone]) -> list[Link]:
    """Return all links of the chain: of learned tasks, of tombstones, and of the entries that tombstones replace.

    Args:
        links: links of the learned tasks.
        tombstones: the tombstones in effect. The tombstone of a missing entry replaces nothing if the bank has been restored
            since; if two tombstones name the same entry, only one of them replaces it.
    """
    aside = {(stone.removed.index, stone.removed.seal or "") for stone in tombstones if stone.aside}
    own = [_link_of_stone(stone, stone) for stone in tombstones]
    entries = {(link.index, link.seal): link for link in [*links, *own]}
    learned = {(link.index, link.task) for link in links}
    for stone in sorted(tombstones, key=lambda stone: stone.removed.seal is None):
        link = _link_of_stone(stone, stone.removed)
        again = not link.seal and not stone.aside and (link.index, link.task) in learned
        if not again:
            entries.setdefault((link.index, link.seal), link)
            learned.add((link.index, link.task))
    return [link.model_copy(update={"aside": True}) if key in aside else link for key, link in entries.items()]


def _link_of_stone(stone: Tombstone, entry: Tombstone | Removed) -> Link:
    """Return the link of a tombstone, or of the entry that it replaces."""
    position: dict[str, Any] = {"index": entry.index, "seal": entry.seal or "", "predecessor": entry.predecessor}
    return Link(**position, task=stone.name, tombstone=True, lost=stone.why == "lost")


def counting(
    tombstones: Sequence[Tombstone], links: Iterable[Link], committed: Callable[[int], bool]
) -> list[Tombstone]:
    """Return the tombstones in effect: all except the newest one if it replaced a bank and the new bank was never written.

    If the process is killed after writing such a tombstone but before writing the new bank, the old bank stays and is
    still live.

    Args:
        tombstones: all tombstones in the folder.
        links: links of the banks in the folder.
        committed: returns whether results.jsonl names the entry right after the given position, in which case the new bank
            was committed and then lost.
    """
    stones = list(tombstones)
    if stones and stones[-1].why == "replaced":
        there = list(links)
        followed = any(link.index > stones[-1].index for link in there)
        back = stones[-1].removed.seal in {link.seal for link in there}
        if not followed and back and not committed(stones[-1].index):
            stones.pop()
    return stones


def live(links: Iterable[Link], tombstones: Sequence[Tombstone]) -> list[Link]:
    """Return the links of live banks, in the order they were learned.

    If the process is killed after writing a tombstone but before removing the bank's folder, that bank is no longer live.
    A bank that was missing when it was dropped, and has been restored since, is live again.
    """
    gone = {tombstone.removed.seal for tombstone in tombstones if tombstone.why != "lost"}
    return sorted((link for link in links if link.seal not in gone), key=lambda link: (link.index, link.task))


def head(links: Iterable[Link]) -> Link | None:
    """Return the newest entry, which the next one will name as its predecessor."""
    return max(links, key=lambda link: link.index, default=None)


def broken(links: Iterable[Link]) -> Mapping[str, str]:
    """Return one problem for each task whose certificate or tombstone does not continue the chain, by task."""
    chain = MainLine(links)
    problems: dict[str, str] = {}
    for index, here in chain.by_index.items():
        for link in here:
            record = "tombstone" if link.tombstone else "certificate"
            if len(here) > 1:
                others = ", ".join(repr(other.task) for other in here if other is not link)
                problems.setdefault(
                    link.task,
                    f"task {link.task!r}: its {record} is entry number {index} of the chain, and so is that of {others}; a "
                    "folder was restored after other tasks were learned or copied in from another run, or a bank.json was "
                    f"edited{chain.ways(here, 'Drop')}; no task can be learned until this is fixed",
                )
            elif not chain.continues(link):
                problems.setdefault(
                    link.task,
                    f"task {link.task!r}: its {record} names a different predecessor than the one in the store; a task was "
                    "removed or reordered, a bank.json was edited, or a tombstone was removed. Restore it from a copy (entry "
                    f"number {index - 1} of the chain){chain.ways([link], 'Or drop')}; no task can be learned until this is "
                    "fixed",
                )
    return problems


class MainLine:
    """The chain without the entries dropped from its forks.

    Args:
        links: links of the whole chain.
    """

    def __init__(self, links: Iterable[Link]) -> None:
        self.by_index: dict[int, list[Link]] = {}
        """Entries by position; more than one where the chain has forked."""
        self._aside: set[int] = set()
        self._followers: dict[str | None, list[Link]] = {}
        for link in links:
            if link.aside:
                self._aside.add(link.index)
            else:
                self.by_index.setdefault(link.index, []).append(link)
                self._followers.setdefault(link.predecessor, []).append(link)

    def has(self, index: int) -> bool:
        """Return whether any entry has this position, including entries dropped from a fork."""
        return index in self.by_index or index in self._aside

    def before(self, index: int) -> Sequence[Link]:
        """Return the entries right before a position, skipping positions whose only entries were dropped from a fork."""
        index -= 1
        while index in self._aside and index not in self.by_index:
            index -= 1
        return self.by_index.get(index, ())

    def after(self, index: int) -> Sequence[Link]:
        """Return the entries right after a position, skipping the same positions."""
        index += 1
        while index in self._aside and index not in self.by_index:
            index += 1
        return self.by_index.get(index, ())

    def continues(self, link: Link) -> bool:
        """Return whether the predecessor that an entry names is the entry right before it."""
        seals: set[str | None] = {predecessor.seal for predecessor in self.before(link.index)}
        if not seals and not any(self.has(index) for index in range(link.index)):
            seals = {None}
        return link.predecessor in seals or "" in seals or (link.lost and link.predecessor is None)

    def followers(self, link: Link) -> list[Link]:
        """Return the entries that name this one as their predecessor."""
        return self._followers.get(link.seal or "no seal", [])

    def is_end(self, link: Link) -> bool:
        """Return whether an entry can be dropped: it ends one side of a fork, or a part that follows a break in the chain."""
        return not link.aside and not self.followers(link) and self._root(link) is not None

    def other_end(self, link: Link) -> Link | None:
        """Return the newest entry on the other side of the fork."""
        root = self._root(link)
        if root is None:
            return None
        others = [
            sibling for sibling in self.by_index[root.index] if sibling is not root and not self._is_misplaced(sibling)
        ]
        sides = others or self.before(root.index)
        ends = [end for side in sides for end in self.ends(side, without=root)]
        return max(ends, key=lambda end: (end.index, end.seal), default=None)

    def _root(self, link: Link) -> Link | None:
        """Return the first entry after the fork or break that precedes an entry; None if there is no fork or break."""
        entry: Link | None = link
        while entry is not None:
            if len(self.by_index[entry.index]) > 1 or self._is_misplaced(entry):
                return entry
            predecessor = entry.predecessor
            entry = next((previous for previous in self.before(entry.index) if previous.seal == predecessor), None)
        return None

    def ends(self, link: Link, *, without: Link | None = None) -> list[Link]:
        """Return the last entries that follow an entry, or the entry itself if nothing follows; leave out ``without``."""
        ends, left = [], [link]
        while left:
            entry = left.pop()
            followers = [follower for follower in self.followers(entry) if follower is not without]
            left += followers
            ends += [] if followers else [entry]
        return ends

    def _is_misplaced(self, link: Link) -> bool:
        """Return whether the preceding entry is not the named predecessor; a gap does not count, since it can be restored."""
        return bool(self.before(link.index)) and not self.continues(link)

    def ways(self, here: Sequence[Link], drop: str) -> str:
        """Return the end of a message: commands that drop these entries, or only the misplaced ones if there are any."""
        astray = [link for link in here if self._is_misplaced(link)]
        ends = [end for link in astray or here for end in self.ends(link) if self.is_end(end)]
        ends = [end for end in ends if not end.tombstone] or (ends if len(here) > 1 else [])
        commands = dict.fromkeys(f"--entry {end.index}" if end.tombstone else end.task for end in ends)
        ways = " or ".join(f"`continual-petl forget RUN {command}`" for command in commands)
        return f". {drop} the entries that do not belong there, the last one first ({ways})" if ways else ""
