"""``scope: shared``: one bank that goes on through all tasks, so what it is made of has to stay the same."""

from __future__ import annotations

from collections.abc import Iterable

from continual_petl.banks.bank import Bank
from continual_petl.course.session import Session
from continual_petl.errors import InputError, StoreError
from continual_petl.learner import ContinualLearner, TaskPlan
from continual_petl.learner.plan import reads_of
from continual_petl.streams.schema.stream_spec import TaskSpec


def check_shared(session: Session, tasks: Iterable[TaskSpec]) -> None:
    """Check, before anything is learned, that shared banks of tasks can go on from one another in this order.

    Raises:
        InputError: naming the first one that cannot.
    """
    newest = session.residents.newest_shared()
    before = None if newest is None else session.store.plan(newest)
    for task in tasks:
        choice = task.bank or session.spec.bank
        if choice.inherits or choice.resolve().scope != "shared":
            continue
        try:
            plan = session.plan(task, None)
        except InputError:
            continue  # told where tasks are looked at one by one
        if before is not None:
            _check_goes_on(plan, before)
        before = plan


def shared_digest(session: Session, plan: TaskPlan) -> str | None:
    """Return the digest of the bank that a shared one goes on from, if there is one."""
    newest = session.residents.newest_shared() if plan.bank.scope == "shared" else None
    return None if newest is None else session.store.manifest(newest).digest


def shared_bank(session: Session, plan: TaskPlan, learner: ContinualLearner) -> tuple[TaskPlan, Bank] | None:
    """Return the task whose bank's body a shared bank goes on from, with that bank, if there is one."""
    if plan.bank.scope != "shared":
        return None
    newest = session.residents.newest_shared()
    if newest is None:
        return None
    _check_goes_on(plan, session.store.plan(newest))
    try:
        return session.store.plan(newest), session.store.load_bank(newest, learner.backbone)
    except StoreError as error:
        raise StoreError(f"task {plan.name!r} goes on from the shared bank of {newest!r}: {error}") from error


def _check_goes_on(plan: TaskPlan, before: TaskPlan) -> None:
    if before.bank != plan.bank:
        raise InputError(
            f"task {plan.name!r}: its shared bank differs from that of {before.name!r}, which it would go on from. One bank "
            "that goes on through all tasks has one specification: write it once, under the stream's `bank`."
        )
    # A full copy includes the pooler if, and only if, its answers go through it.
    full = any(modification.modifies == "weights" for modification in plan.bank.modifications)
    if full and (reads_of(before) == "pooler") != (reads_of(plan) == "pooler"):
        ways = {True: "answers through the pooler", False: "answers without the pooler"}
        raise InputError(
            f"task {plan.name!r}: it {ways[reads_of(plan) == 'pooler']}, but {before.name!r}, whose shared bank it would go "
            f"on from, {ways[reads_of(before) == 'pooler']}, and a full copy holds the pooler or does not. Write a pooling "
            "other than 'pooler', under `backbone`."
        )
