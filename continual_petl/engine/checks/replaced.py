"""Check whether learned tasks may be learned again (``--replace``) or dropped without changing other tasks' predictions."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from continual_petl.errors import InputError
from continual_petl.store.dependencies import readers
from continual_petl.store.store import Store

if TYPE_CHECKING:
    from continual_petl.engine.session import Session  # imports torch, which `forget` does not need


def check_replaced(session: Session, tasks: Collection[str]) -> None:
    """Raise `InputError` unless these tasks can be learned again."""
    for task in tasks:
        if task not in session.store.tasks:
            known = ", ".join(session.store.tasks) or "none"
            raise InputError(
                f"--replace {task}: this task has not been learned in {session.folder}; learned tasks: {known}"
            )
        if task not in [spec.name for spec in session.spec.tasks]:
            raise InputError(f"--replace {task}: the stream does not say how to learn it; add it to `tasks`")
        check_not_shared(session.store, task, "replaced")
        check_not_read(session.store, task, "replaced")


def check_not_shared(store: Store, task: str, what: str) -> None:
    """Reject a change to a shared bank that would affect other tasks' predictions, which use the newest shared bank."""
    shared = [link.task for link in store.links() if link.shared]
    if task in shared and len(shared) > 1 and (what == "replaced" or task == shared[-1]):
        others = ", ".join(repr(name) for name in shared if name != task)
        raise InputError(
            f"task {task!r} cannot be {what}: its bank has scope: shared, and without it {others} would predict differently. "
            "Learn the stream into another --run-dir."
        )


def check_not_read(store: Store, task: str, what: str) -> None:
    """Reject a change to a bank that fused banks read."""
    if found := readers(store, task):
        raise InputError(
            f"task {task!r} cannot be {what}: other tasks have fused banks that read its bank, and could not predict without "
            f"it: {', '.join(map(repr, found))}. Forget them first (continual-petl forget), or learn the stream into "
            "another --run-dir."
        )
