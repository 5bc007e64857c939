"""``start_from``: a bank that is initialised as a copy of another bank."""

from __future__ import annotations

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.errors import InputError
from continual_petl.heads.linear import NumberHead
from continual_petl.heads.targets import AS_GIVEN
from continual_petl.learner.plan import build_bank
from continual_petl.learner.task_plan import TaskPlan


def check_start(plan: TaskPlan, parent: TaskPlan, backbone: Backbone) -> None:
    """Check that one task's bank can be initialised as a copy of another's; their heads may differ.

    Raises:
        InputError: if the parent was trained through a network that is discarded after training, or a tensor differs in
            name or shape; the message names the network or the first such tensor.
    """
    where = f"task {plan.name!r}, bank.start_from: {parent.name!r}"
    folding = next((modification for modification in parent.bank.modifications if modification.folds), None)
    if folding is not None:
        trained = folding.config.trained_through(folding)
        raise InputError(
            f"{where} cannot be started from: its {folding.form} was trained through {trained}, which is folded away "
            "once a task is learned, so training cannot continue. Start from a bank that is stored in the form it was "
            "trained in (reparametrise: none), or remove start_from."
        )
    mine, theirs = (build_bank(task_plan, backbone).body() for task_plan in (plan, parent))
    for name in sorted(mine.keys() | theirs.keys()):
        here, there = (tuple(body[name].shape) if name in body else None for body in (mine, theirs))
        if here != there:
            has, had = ("no such tensor" if shape is None else f"shape {shape}" for shape in (here, there))
            raise InputError(
                f"{where} has a different bank: tensor {name} has {had} there and {has} here. Only a bank with the same "
                f"modifications, layers and sizes can be copied: write bank: {{start_from: {parent.name}}} alone, which "
                "takes all settings from that bank, or remove start_from."
            )


def copy_bank(plan: TaskPlan, bank: Bank, other: TaskPlan, start: Bank) -> None:
    """Copy another task's bank into a fresh one, without changing the other bank.

    With ``start_from`` the head is copied too if the two tasks have the same kind and labels. A bank of ``scope: shared``
    passes only its body from task to task. A regression head that is copied begins at the mean of the new task's targets,
    with their deviation. If it predicts in the units of the targets, as heads that were imported or learned before targets
    were standardised, it begins with the same predictions instead.
    """
    bank.copy_body(start.body())
    if plan.bank.start_from is not None and (plan.kind, plan.labels) == (other.kind, other.labels):
        bank.head.load_state_dict(start.head.state_dict(), strict=True)
        if plan.targets is not None and other.targets in (None, AS_GIVEN):
            assert isinstance(bank.head, NumberHead)
            bank.head.rescale(1 / plan.targets.deviation, -plan.targets.mean / plan.targets.deviation)
