"""The chain: certificates and tombstones in the order in which they were written, each naming the one before.

Removing, reordering or editing a task breaks it, and so does taking a tombstone away. That its newest entries were cut off
together no chain can show; `continual_petl.store.missing` compares it with ``results.jsonl`` for that, and whoever noted the
head's seal needs neither.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from continual_petl.store.manifest import Manifest
from continual_petl.store.tombstone import Tombstone


@dataclass(frozen=True)
class Link:
    """What the chain needs of one entry, and what is asked of every task: small, where a manifest is not."""

    index: int
    seal: str
    """Empty for an entry that was missing when it was dropped, if nothing says what its seal was."""
    predecessor: str | None
    task: str
    shared: bool = False
    """Whether the task's bank is one that goes on through all tasks."""
    tombstone: bool = False
    lost: bool = False
    """Whether a tombstone stands for an entry that was missing when it was dropped. Its neighbours may have been missing too,
    so where it names no predecessor, nothing is claimed."""
    aside: bool = False
    """Whether it was dropped from a fork: another entry has its position in the chain."""


def link_of(manifest: Manifest) -> Link:
    """Return the link of a certificate."""
    shared = manifest.bank.scope == "shared"
    return Link(manifest.index, manifest.seal, manifest.predecessor, manifest.task, shared=shared)


def links_of(tombstone: Tombstone) -> tuple[Link, Link]:
    """Return the link of the certificate that is gone, and that of the tombstone itself."""
    gone, lost = tombstone.removed, tombstone.why == "lost"
    return (
        Link(
            gone.index,
            gone.seal or "",
            gone.predecessor,
            tombstone.name,
            tombstone=True,
            lost=lost,
            aside=tombstone.aside,
        ),
        Link(tombstone.index, tombstone.seal, tombstone.predecessor, tombstone.name, tombstone=True, lost=lost),
    )


def counting(tombstones: Sequence[Tombstone], links: Iterable[Link]) -> list[Tombstone]:
    """Return the tombstones that count: not the newest entry, if it makes room for a bank that never came.

    A kill between such a tombstone and the new bank leaves the old one in its place, and that is what the run has then.
    """
    stones = list(tombstones)
    if stones and stones[-1].why == "replaced":
        there = list(links)
        followed = any(link.index > stones[-1].index for link in there)
        if not followed and stones[-1].removed.seal in {link.seal for link in there}:
            stones.pop()
    return stones


def live(links: Iterable[Link], tombstones: Sequence[Tombstone]) -> list[Link]:
    """Return the links that count, in the order of learning.

    A kill between a tombstone and the removal of its folder leaves a bank that no longer counts.
    """
    gone = {tombstone.removed.seal for tombstone in tombstones}
    return sorted((link for link in links if link.seal not in gone), key=lambda link: (link.index, link.task))


def head(links: Iterable[Link]) -> Link | None:
    """Return the newest entry, which the next one will name."""
    return max(links, key=lambda link: link.index, default=None)


def broken(links: Iterable[Link]) -> Mapping[str, str]:
    """Return one problem for each task whose certificate or tombstone does not continue the chain; empty if it is whole."""
    by_index: dict[int, list[Link]] = {}
    for link in links:
        if not link.aside:
            by_index.setdefault(link.index, []).append(link)
    problems: dict[str, str] = {}
    for index, here in by_index.items():
        seals: set[str | None] = {link.seal for link in by_index.get(index - 1, [])} if index else {None}
        followed = {link.predecessor for link in by_index.get(index + 1, [])}
        for link in here:
            what = "tombstone" if link.tombstone else "certificate"
            if len(here) > 1:
                problems.setdefault(link.task, _fork(link, what, here, followed))
            elif link.predecessor not in seals and "" not in seals and not (link.lost and link.predecessor is None):
                problems.setdefault(
                    link.task,
                    f"task {link.task!r}: its {what} names another predecessor than the one in the store; a task was "
                    "removed, reordered, or its bank.json edited, or a tombstone was taken away. Restore that from a copy "
                    f"(entry number {index - 1} of the chain); until then no task is learned",
                )
    return problems


def _fork(link: Link, what: str, here: Sequence[Link], followed: Collection[str | None]) -> str:
    """Return the problem of one of several entries at the same position, with what can be done about it."""
    others = ", ".join(repr(other.task) for other in here if other is not link)
    leaves = [other.task for other in here if not other.tombstone and other.seal not in followed]
    ways = " or ".join(f"`continual-petl forget RUN {task}`" for task in leaves)
    return (
        f"task {link.task!r}: its {what} is entry number {link.index} of the chain, and so is that of {others}; a folder was "
        "put back after other tasks were learned, copied in from another run, or a bank.json was edited. "
        f"{f'Drop one on record ({ways}), or, i' if leaves else 'I'}f its folder is not of this run, move it out; until then "
        "no task is learned"
    )
