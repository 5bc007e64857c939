"""Dropping one entry of the chain on purpose: a learned task, one side of a fork, or an entry that is missing."""

from __future__ import annotations

import shutil
from typing import Literal

from continual_petl.errors import InputError, StoreError
from continual_petl.store.chain import Link
from continual_petl.store.missing import Missing
from continual_petl.store.store import Store
from continual_petl.store.tombstone import Removed, Tombstone, write_tombstone


def tombstone_of(store: Store, task: str, why: Literal["forgotten", "replaced"]) -> Tombstone:
    """Return the tombstone that would take a learned task's place, as the next entry of the chain."""
    link, newest = store.link(task), store.head()
    assert newest is not None
    removed = Removed(index=link.index, seal=link.seal, predecessor=link.predecessor)
    return Tombstone(index=newest.index + 1, predecessor=newest.seal, task=task, why=why, removed=removed)


def forget_task(store: Store, task: str) -> Tombstone:
    """Drop a learned task, or one whose bank is missing: its tombstone joins the chain, then its folder goes.

    Args:
        store: the run; its lock is held.
        task: learned, or known to have been.

    Raises:
        InputError: if it is one side of a fork, and other entries follow it.
        StoreError: if something else is missing or broken: a tombstone would make that look dropped on purpose.
    """
    if not store.has(task):
        return forget_missing(store, next(entry for entry in store.missing() if entry.task == task))
    link, progress = store.link(task), store.progress_folder(task)
    chain = [each for each in store.chain() if not each.aside]
    beside = [each for each in chain if each.index == link.index and each.seal != link.seal]
    problems = _elsewhere(store, link) if beside else [*store.broken().values(), *_elsewhere(store, link)]
    if problems:
        raise StoreError(" ".join(problems))
    if beside:
        followers = [each.task for each in chain if each.predecessor == link.seal]
        if followers:
            raise InputError(
                f"task {task!r} cannot be forgotten: the chain has forked at entry {link.index}, and {followers[0]!r} "
                f"follows this side of it. Forget {beside[0].task!r}, or what follows first."
            )
    removed = Removed(index=link.index, seal=link.seal, predecessor=link.predecessor)
    tombstone = _write(store, task, "forgotten", removed, aside=bool(beside))
    shutil.rmtree(progress, ignore_errors=True)
    return tombstone


def forget_missing(store: Store, entry: Missing) -> Tombstone:
    """Drop an entry that is missing: its tombstone says as much of it as is known.

    Raises:
        StoreError: for a run of format 1, where nothing says which entry it was.
    """
    if entry.index is None:
        raise StoreError(
            f"task {entry.task!r}: its bank is missing, and nothing says which entry of the chain it was, since the run is "
            "of format 1. Restore its folder from a copy."
        )
    removed = Removed(index=entry.index, seal=entry.seal, predecessor=entry.predecessor)
    return _write(store, entry.task, "lost", removed, aside=entry.taken is not None)


def _elsewhere(store: Store, link: Link) -> list[str]:
    """Return what is missing beside a bank whose place this one has taken."""
    others = [entry for entry in store.missing() if (entry.task, entry.index) != (link.task, link.index)]
    return [entry.message(store.folder) for entry in others]


def _write(
    store: Store, task: str | None, why: Literal["forgotten", "lost"], removed: Removed, *, aside: bool
) -> Tombstone:
    """Write a tombstone behind every position that was ever taken."""
    chain, missing = store.chain(), store.missing()
    newest = max([link.index for link in chain] + [entry.index for entry in missing if entry.index is not None])
    dropped = removed.seal if aside else ""
    there = [link.seal for link in chain if link.index == newest and not link.aside and link.seal != dropped]
    seals = there or [entry.seal or "" for entry in missing if entry.index == newest and entry.taken is None]
    tombstone = Tombstone(
        index=newest + 1,
        predecessor=min(filter(None, seals), default=None),
        task=task,
        why=why,
        removed=removed,
        aside=aside,
    )
    write_tombstone(store.tombstone_folder, tombstone)
    store.clean()
    return tombstone
