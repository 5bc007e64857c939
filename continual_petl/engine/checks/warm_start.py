"""Check ``start_from``: a task's bank is initialised from the learned banks of other tasks."""

from __future__ import annotations

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.inherit import unknown_parent
from continual_petl.banks.config.spec import named_parents
from continual_petl.engine.session import Session
from continual_petl.errors import InputError, StoreError
from continual_petl.learner import TaskPlan
from continual_petl.learner.start import check_start
from continual_petl.store.certificate.values import Parent
from continual_petl.streams.schema.stream_spec import TaskSpec


def check_parent(session: Session, task: TaskSpec) -> None:
    """Check, before anything is learned, that the tasks whose banks this one starts from are learned before it.

    Raises:
        InputError: if one is unknown or comes later in the stream.
    """
    # A stream in which a task starts from itself is rejected when it is read.
    names = [each.name for each in session.spec.tasks]
    for parent in named_parents((task.bank or session.spec.bank).start_from):
        if session.store.has(parent):
            continue
        if parent not in names:
            raise InputError(unknown_parent(task.name, parent, dict.fromkeys([*session.store.tasks, *names])))
        if names.index(parent) > names.index(task.name):
            raise InputError(
                f"task {task.name!r}, bank.start_from: {parent!r} comes later in the stream and is not learned yet: move it "
                "before this task, or start from another task"
            )


def check_copies(session: Session, plan: TaskPlan, backbone: Backbone) -> None:
    """Check that a task's bank can start as a copy or an average of its parents' banks; see `check_start`."""
    parents = named_parents(plan.bank.start_from)
    if len(parents) > 1 and (why := plan.bank.why_not_averaged()) is not None:
        raise InputError(f"task {plan.name!r}, bank.start_from: {why}: name one task, or choose another preset")
    for parent in parents:
        check_start(plan, _plan_of(session, parent), backbone)


def parent_bank(session: Session, plan: TaskPlan, backbone: Backbone) -> tuple[TaskPlan, Bank] | None:
    """Return the task whose bank is copied, with that bank as it was committed; None unless exactly one task is named.

    Raises:
        InputError: if that bank cannot be copied for this task.
        StoreError: if that bank is damaged.
    """
    parents = named_parents(plan.bank.start_from)
    if len(parents) != 1:
        return None
    check_copies(session, plan, backbone)
    return learned_bank(session, plan, parents[0], backbone)


def learned_bank(session: Session, plan: TaskPlan, parent: str, backbone: Backbone) -> tuple[TaskPlan, Bank]:
    """Return the plan and the committed bank of a task that another one starts from.

    Raises:
        StoreError: if the bank is damaged.
    """
    try:
        return session.store.plan(parent), session.store.load_bank(parent, backbone)
    except StoreError as error:
        raise StoreError(f"task {plan.name!r} starts from the bank of {parent!r}: {error}") from error


def parents_of(session: Session, plan: TaskPlan) -> tuple[Parent, ...]:
    """Return the certificate's records of the banks that the stream names as starting points."""
    return tuple(certified_parent(session, name) for name in named_parents(plan.bank.start_from))


def certified_parent(session: Session, task: str) -> Parent:
    """Return the certificate's record of a learned bank that another one starts from."""
    return Parent(task=task, digest=session.store.manifest(task).digest)


def _plan_of(session: Session, task: str) -> TaskPlan:
    if session.store.has(task):
        return session.store.plan(task)
    return session.plan(next(each for each in session.spec.tasks if each.name == task), None)
