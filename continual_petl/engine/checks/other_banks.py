"""Check the banks that a task's bank starts from (``start_from``), reads (``fuse``) or continues (``scope: shared``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.inherit import unknown_parent
from continual_petl.banks.config.spec import named_parents
from continual_petl.engine.session import Session
from continual_petl.errors import InputError, StoreError
from continual_petl.learner import ContinualLearner, TaskPlan
from continual_petl.learner.begin import check_start
from continual_petl.learner.plan import reads_of
from continual_petl.store.certificate.values import BankReference
from continual_petl.streams.schema.stream_spec import TaskSpec


def check_order(session: Session, task: TaskSpec, learning: Collection[str]) -> None:
    """Check, before anything is learned, that the tasks whose banks this one starts from or reads are learned before it.

    Args:
        session: the run.
        task: the task.
        learning: names of the tasks to learn.

    Raises:
        InputError: if one is unknown, comes later in the stream, or is neither learned nor among those to learn.
    """
    choice = task.bank or session.spec.bank
    names = [each.name for each in session.spec.tasks]
    for key, others in (("start_from", named_parents(choice.start_from)), ("fuse", choice.fuse or ())):
        for other in others:
            if session.store.has(other):
                continue
            if other == task.name:
                does = "start from" if key == "start_from" else "read"
                raise InputError(
                    f"task {task.name!r}, bank.{key}: a bank can only {does} the bank of an earlier task, and {other!r} is "
                    f"the task itself: name another task, or leave it out of {key}"
                )
            if other not in names:
                raise InputError(
                    unknown_parent(task.name, other, dict.fromkeys([*session.store.tasks, *names]), key),
                )
            if names.index(other) >= names.index(task.name):
                raise InputError(
                    f"task {task.name!r}, bank.{key}: {other!r} does not come before this task in the stream and is not "
                    f"learned yet: move it before this task, or leave it out of {key}"
                )
            if other not in learning:
                raise InputError(
                    f"task {task.name!r} needs the bank of {other!r}, a task of the run's stream that is not learned yet: "
                    f"learn {other!r} first"
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


def parents_of(session: Session, plan: TaskPlan) -> tuple[BankReference, ...]:
    """Return the certificate's records of the banks that the stream names as starting points."""
    return tuple(certified_bank(session, name) for name in named_parents(plan.bank.start_from))


def certified_bank(session: Session, task: str) -> BankReference:
    """Return the certificate's record of a learned bank that another one starts from or reads."""
    return BankReference(task=task, digest=session.store.certificate(task).digest)


def _plan_of(session: Session, task: str) -> TaskPlan:
    if session.store.has(task):
        return session.store.plan(task)
    return session.plan(session.task(task))


def banks_read(session: Session, plan: TaskPlan) -> tuple[BankReference, ...]:
    """Return the certificate's record of the banks that a task's bank reads."""
    return tuple(certified_bank(session, name) for name in plan.bank.fuse)


def check_shared(session: Session, tasks: Iterable[TaskSpec]) -> None:
    """Check, before anything is learned, that tasks with a shared bank can continue from one another in this order.

    Raises:
        InputError: naming the first task that cannot continue.
    """
    newest = session.models.newest_shared()
    before = None if newest is None else session.store.plan(newest)
    for task in tasks:
        choice = task.bank or session.spec.bank
        if choice.inherits or choice.resolve().scope != "shared":
            continue
        try:
            plan = session.plan(task)
        except InputError:
            continue  # reported when tasks are checked one by one
        if before is not None:
            _check_continues(plan, before)
        before = plan


def shared_digest(session: Session, plan: TaskPlan) -> str | None:
    """Return the digest of the bank that a shared bank continues from, if there is one."""
    newest = session.models.newest_shared() if plan.bank.scope == "shared" else None
    return None if newest is None else session.store.certificate(newest).digest


def shared_bank(session: Session, plan: TaskPlan, learner: ContinualLearner) -> tuple[TaskPlan, Bank] | None:
    """Return the task whose bank a shared bank continues from, and that bank; None if there is none."""
    if plan.bank.scope != "shared":
        return None
    newest = session.models.newest_shared()
    if newest is None:
        return None
    _check_continues(plan, session.store.plan(newest))
    try:
        return session.store.plan(newest), session.store.load_bank(newest, learner.backbone)
    except StoreError as error:
        raise StoreError(f"task {plan.name!r} continues from the shared bank of {newest!r}: {error}") from error


def _check_continues(plan: TaskPlan, before: TaskPlan) -> None:
    if before.bank != plan.bank:
        raise InputError(
            f"task {plan.name!r}: its shared bank differs from that of {before.name!r}, which it would continue from. A bank "
            "shared by all tasks has one specification: write it once, under the stream's `bank`."
        )
    # A full copy includes the pooler if and only if the task uses the pooler.
    full = any(modification.modifies == "weights" for modification in plan.bank.modifications)
    if full and (reads_of(before) == "pooler") != (reads_of(plan) == "pooler"):
        ways = {True: "uses the pooler", False: "does not use the pooler"}
        raise InputError(
            f"task {plan.name!r}: it {ways[reads_of(plan) == 'pooler']}, but {before.name!r}, whose shared bank it would "
            f"continue, {ways[reads_of(before) == 'pooler']}, and a full copy either holds the pooler or does not. Write a "
            "pooling other than 'pooler', under `backbone`."
        )
