"""Drop a learned task on purpose: the ledger says so, and its bank is deleted."""

from __future__ import annotations

from continual_petl.errors import InputError, StoreError
from continual_petl.store.files.atomic import remove_folder
from continual_petl.store.ledger.lines import ForgetLine, forget_line
from continual_petl.store.store import Store


def forget_task(store: Store, task: str) -> ForgetLine:
    """Return the line that drops a learned task, even if its bank is missing; it is not written yet.

    Args:
        store: the run; its lock is held.
        task: a learned task.

    Raises:
        StoreError: if its bank is there, but another one is missing or damaged: that has to be settled first.
    """
    lost = store.state().missing.get(task)
    commit = lost or store.commit(task)
    others = [problem for name, problem in store.problems().items() if name not in (task, commit.folder)]
    if others and lost is None:
        raise StoreError(" ".join(others))
    # Removed before the line is written: otherwise, if the task is learned again, it would resume from old progress.
    remove_folder(store.progress_folder(task))
    index, predecessor = store.state().entries.next
    return forget_line(index, predecessor, commit, "forgotten" if lost is None else "lost")


def forget_entry(store: Store, number: int) -> ForgetLine | None:
    """Return the line that drops a missing bank, given by its position in the chain.

    Returns:
        None if the ledger has this line already, since the same command may have been killed after it was written.

    Raises:
        InputError: if no bank is missing there.
    """
    state = store.state()
    missing = {commit.index: commit for commit in state.missing.values()}
    if number not in missing:
        learned = {commit.index for commit in state.commits.values()}
        if number not in learned and number in {
            stone.removed.index for stone in store.tombstones() if stone.why == "lost"
        }:
            return None
        known = ", ".join(map(str, missing)) or "none"
        raise InputError(
            f"--entry {number}: this entry of the chain is not missing in {store.folder}; missing entries: {known}"
        )
    index, predecessor = state.entries.next
    return forget_line(index, predecessor, missing[number], "lost")


def delete_forgotten(store: Store, task: str) -> None:
    """Delete the files of the task that was dropped last.

    Raises:
        StoreError: if some of them remain.
    """
    try:
        # Whatever is there, even if it is not the bank that the ledger names.
        remove_folder(store.banks / store.tombstones()[-1].removed.folder)
        store.clean()
    except StoreError:
        try:
            store.clean()  # for instance, another process was reading one of them
        except StoreError as error:
            raise StoreError(
                f"{store.folder}: task {task!r} is forgotten, and no bank predicts its rows any more, but not all of its "
                f"files could be deleted ({error.__cause__ or error}). The next command that writes to the run deletes them."
            ) from error
