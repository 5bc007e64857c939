"""The chain: certificates and tombstones in the order in which they were written, each naming the one before.

Removing, reordering or editing a task breaks it, and so does taking a tombstone away. What no chain can show is that its
newest entries were cut off together; whoever noted the head's seal can.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from continual_petl.store.manifest import Manifest
from continual_petl.store.tombstone import Tombstone


@dataclass(frozen=True)
class Link:
    """What the chain needs of one entry, and what is asked of every task: small, where a manifest is not."""

    index: int
    seal: str
    predecessor: str | None
    task: str
    shared: bool = False
    """Whether the task's bank is one that goes on through all tasks."""
    tombstone: bool = False


def link_of(manifest: Manifest) -> Link:
    """Return the link of a certificate."""
    shared = manifest.bank.scope == "shared"
    return Link(manifest.index, manifest.seal, manifest.predecessor, manifest.task, shared=shared)


def links_of(tombstone: Tombstone) -> tuple[Link, Link]:
    """Return the link of the certificate that is gone, and that of the tombstone itself."""
    gone = tombstone.removed
    return (
        Link(gone.index, gone.seal, gone.predecessor, tombstone.task, tombstone=True),
        Link(tombstone.index, tombstone.seal, tombstone.predecessor, tombstone.task, tombstone=True),
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
    """Return one problem for each task whose certificate or tombstone does not continue the chain; at best nothing."""
    by_index: dict[int, list[Link]] = {}
    for link in links:
        by_index.setdefault(link.index, []).append(link)
    problems: dict[str, str] = {}
    for index, here in by_index.items():
        before = by_index.get(index - 1, [])
        expected = before[0].seal if len(before) == 1 else None
        for link in here:
            what = "tombstone" if link.tombstone else "certificate"
            if len(here) > 1:
                problems.setdefault(
                    link.task,
                    f"task {link.task!r}: its {what} stands at position {index} of the chain, and so does another one; a "
                    "folder was copied into the run, or its bank.json edited",
                )
            elif (index > 0 and len(before) != 1) or link.predecessor != expected:
                problems.setdefault(
                    link.task,
                    f"task {link.task!r}: its {what} names another predecessor than the one in the store; a task was "
                    "removed, reordered, or its bank.json edited, or a tombstone was taken away. Restore that from a copy "
                    f"(entry number {index - 1} of the chain); until then no task is learned",
                )
    return problems
