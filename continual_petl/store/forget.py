"""Drop one entry of the chain on purpose: a learned task, one side of a fork, or a missing entry."""

from __future__ import annotations

from typing import Literal

from continual_petl.errors import InputError, StoreError
from continual_petl.store.certificate.chain import Link, MainLine
from continual_petl.store.certificate.tombstone import Removed, Tombstone, write_tombstone
from continual_petl.store.files.atomic import remove_folder
from continual_petl.store.folder.missing_entries import Missing
from continual_petl.store.store import Store


def tombstone_of(store: Store, task: str, why: Literal["forgotten", "replaced"]) -> Tombstone:
    """Return the tombstone of a learned task, as the next entry of the chain."""
    link, newest = store.link(task), store.head()
    assert newest is not None
    removed = Removed(index=link.index, seal=link.seal, predecessor=link.predecessor)
    return Tombstone(index=newest.index + 1, predecessor=newest.seal, task=task, why=why, removed=removed)


def forget_task(store: Store, task: str) -> Tombstone:
    """Drop a learned task, or one whose bank is missing: its tombstone joins the chain. `delete_forgotten` deletes its files.

    Args:
        store: the run; its lock is held.
        task: a learned task, or one known to have been learned.

    Raises:
        StoreError: if another entry is missing or broken, since a tombstone would make it look dropped on purpose. Despite a
            fork, the last entry of one of its sides can be dropped.
    """
    if not store.has(task):
        return forget_missing(store, next(entry for entry in store.missing() if entry.task == task))
    link, progress = store.link(task), store.progress_folder(task)
    chain = MainLine(store.chain())
    aside = chain.is_end(link)
    problems = (
        _missing_elsewhere(store, link) if aside else [*store.broken().values(), *_missing_elsewhere(store, link)]
    )
    if problems:
        raise StoreError(" ".join(problems))
    removed = Removed(index=link.index, seal=link.seal, predecessor=link.predecessor)
    # Removed before the tombstone is written: otherwise, if the task is learned again, it would resume from old progress.
    remove_folder(progress)
    return _write(store, task, "forgotten", removed, aside=aside)


def forget_entry(store: Store, number: int) -> Tombstone:
    """Drop an entry by its position: a missing one, or a tombstone that ends one side of a fork.

    Raises:
        InputError: if it is neither.
    """
    missing = store.missing()
    for entry in missing:
        if entry.index == number:
            return forget_missing(store, entry)
    links = store.chain()
    chain = MainLine(links)
    for stone in store.tombstones():
        link = next(link for link in links if link.seal == stone.seal)
        if stone.index == number and chain.is_end(link):
            removed = Removed(index=stone.index, seal=stone.seal, predecessor=stone.predecessor)
            return _write(store, stone.task, "lost", removed, aside=True)
        # The same command may have been killed after it wrote the tombstone.
        if stone.why == "lost" and stone.removed.index == number:
            return stone
    known = ", ".join(str(entry.index) for entry in missing) or "none"
    raise InputError(
        f"--entry {number}: this entry of the chain is not missing in {store.folder}; missing entries: {known}"
    )


def forget_missing(store: Store, entry: Missing) -> Tombstone:
    """Drop a missing entry: its tombstone records what is known about it."""
    removed = Removed(index=entry.index, seal=entry.seal, predecessor=entry.predecessor)
    return _write(store, entry.task, "lost", removed, aside=entry.taken is not None)


def _missing_elsewhere(store: Store, link: Link) -> list[str]:
    """Describe the missing entries, except one whose position this bank has taken."""
    others = [entry for entry in store.missing() if (entry.task, entry.index) != (link.task, link.index)]
    return [entry.message(store.folder) for entry in others]


def _write(
    store: Store, task: str | None, why: Literal["forgotten", "lost"], removed: Removed, *, aside: bool
) -> Tombstone:
    """Write a tombstone at the first position that no entry has ever had."""
    chain, missing = store.chain(), store.missing()
    newest = max([link.index for link in chain] + [entry.index for entry in missing])
    lost = [entry.seal or "" for entry in missing if entry.index == newest and entry.taken is None]
    main = MainLine(chain)
    # Where the chain has forked, it continues from the side that is kept.
    dropped = next((link for link in chain if aside and (link.index, link.seal) == (removed.index, removed.seal)), None)
    kept = None if dropped is None else main.other_end(dropped)
    seals = [kept.seal] if kept is not None else lost or [link.seal for link in main.before(newest + 1)]
    tombstone = Tombstone(
        index=newest + 1,
        predecessor=min(filter(None, seals), default=None),
        task=task,
        why=why,
        removed=removed,
        aside=aside,
    )
    write_tombstone(store.tombstone_folder, tombstone)
    return tombstone


def delete_forgotten(store: Store, task: str | None) -> None:
    """Delete the files of a task that has a tombstone.

    Raises:
        StoreError: if some of them remain.
    """
    try:
        store.clean()
    except StoreError:
        try:
            store.clean()  # for instance, another process was reading one of them
        except StoreError as error:
            raise StoreError(
                f"{store.folder}: task {task!r} is forgotten, and no bank predicts its rows any more, but not all of its "
                f"files could be deleted ({error.__cause__ or error}). The next command that writes to the run deletes them."
            ) from error
