"""Check streams with ``scope: shared``: all tasks train the same bank in turn, so its structure must not change."""

from __future__ import annotations

from collections.abc import Iterable

from continual_petl.banks.bank import Bank
from continual_petl.engine.session import Session
from continual_petl.errors import InputError, StoreError
from continual_petl.learner import ContinualLearner, TaskPlan
from continual_petl.learner.plan import reads_of
from continual_petl.streams.schema.stream_spec import TaskSpec


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
            plan = session.plan(task, None)
        except InputError:
            continue  # reported when tasks are checked one by one
        if before is not None:
            _check_continues(plan, before)
        before = plan


def shared_digest(session: Session, plan: TaskPlan) -> str | None:
    """Return the digest of the bank that a shared bank continues from, if there is one."""
    newest = session.models.newest_shared() if plan.bank.scope == "shared" else None
    return None if newest is None else session.store.manifest(newest).digest


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
