"""Check ``fuse``: the tasks whose banks a fused bank reads must be learned before its own task."""

from __future__ import annotations

from continual_petl.banks.config.inherit import unknown_parent
from continual_petl.engine.session import Session
from continual_petl.errors import InputError
from continual_petl.learner import TaskPlan
from continual_petl.store.certificate.values import Parent
from continual_petl.streams.schema.stream_spec import TaskSpec


def check_fused(session: Session, task: TaskSpec) -> None:
    """Raise `InputError` unless the banks that a task's bank reads are learned, or come earlier in the stream."""
    names = [each.name for each in session.spec.tasks]
    for name in (task.bank or session.spec.bank).fuse or ():
        if session.store.has(name):
            continue
        if name not in names:
            raise InputError(
                unknown_parent(task.name, name, dict.fromkeys([*session.store.tasks, *names]), "fuse"),
            )
        if names.index(name) >= names.index(task.name):
            raise InputError(
                f"task {task.name!r}, bank.fuse: {name!r} does not come before this task in the stream and is not learned "
                "yet: move it before this task, or leave it out of fuse"
            )


def reads_of(session: Session, plan: TaskPlan) -> tuple[Parent, ...]:
    """Return the certificate's record of the banks that a task's bank reads."""
    return tuple(Parent(task=name, digest=session.store.manifest(name).digest) for name in plan.bank.fuse)
