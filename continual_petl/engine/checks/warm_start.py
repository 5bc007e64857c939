"""Check ``start_from``: a task's bank is initialised with a copy of another task's learned bank."""

from __future__ import annotations

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.inherit import unknown_parent
from continual_petl.engine.session import Session
from continual_petl.errors import InputError, StoreError
from continual_petl.learner import TaskPlan
from continual_petl.learner.start import check_start
from continual_petl.store.certificate.manifest import Parent
from continual_petl.streams.schema.stream_spec import TaskSpec


def check_parent(session: Session, task: TaskSpec) -> None:
    """Check, before anything is learned, that the task whose bank this one starts from is learned before it.

    Raises:
        InputError: if it is unknown or comes later in the stream.
    """
    parent = (task.bank or session.spec.bank).start_from
    if parent is None or session.store.has(parent):
        return
    names = [
        each.name for each in session.spec.tasks
    ]  # never the task itself: such a stream is rejected when it is read
    if parent not in names:
        raise InputError(unknown_parent(task.name, parent, dict.fromkeys([*session.store.tasks, *names])))
    if names.index(parent) > names.index(task.name):
        raise InputError(
            f"task {task.name!r}, bank.start_from: {parent!r} comes later in the stream and is not learned yet: move it "
            "before this task, or start from another one"
        )


def check_copies(session: Session, plan: TaskPlan, backbone: Backbone) -> None:
    """Check that a task's bank can start as a copy of its parent's; see `check_start`."""
    if plan.bank.start_from is not None:
        check_start(plan, _plan_of(session, plan.bank.start_from), backbone)


def parent_bank(session: Session, plan: TaskPlan, backbone: Backbone) -> tuple[TaskPlan, Bank] | None:
    """Return the task whose bank this one starts from, with that bank as it was committed.

    Raises:
        InputError: if that bank does not fit.
        StoreError: if it is damaged.
    """
    name = plan.bank.start_from
    if name is None:
        return None
    check_copies(session, plan, backbone)
    try:
        return session.store.plan(name), session.store.load_bank(name, backbone)
    except StoreError as error:
        raise StoreError(f"task {plan.name!r} starts from the bank of {name!r}: {error}") from error


def parent_of(session: Session, plan: TaskPlan) -> Parent | None:
    """Return the certificate's record of the bank that a task's bank starts from."""
    name = plan.bank.start_from
    return None if name is None else Parent(task=name, digest=session.store.manifest(name).digest)


def _plan_of(session: Session, task: str) -> TaskPlan:
    if session.store.has(task):
        return session.store.plan(task)
    return session.plan(next(each for each in session.spec.tasks if each.name == task), None)
