"""Isolation checks: exactly one bank is trained, and nothing else can be."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.optim import Optimizer

from continual_petl.backbones.mutable_state import moves_in_training
from continual_petl.banks.bank import Bank
from continual_petl.errors import IsolationError, counted


def check_optimizer(task: str, bank: Bank, optimizers: Iterable[Optimizer], everything: nn.Module) -> None:
    """Raise `IsolationError` unless the optimizers hold exactly the bank's trainable parameters.

    Args:
        task: the task being learned.
        bank: its bank.
        optimizers: the optimizers about to step.
        everything: the learner, to name a parameter outside the bank.
    """
    mine = {id(p) for p in bank.parameters() if p.requires_grad}
    held = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    foreign = [p for p in held if id(p) not in mine]
    if foreign:
        names = {id(p): name for name, p in everything.named_parameters(remove_duplicate=False)}
        name = names.get(id(foreign[0]), f"a tensor of shape {tuple(foreign[0].shape)} that the learner does not hold")
        raise IsolationError(
            f"task {task!r}: the optimizer holds {counted(len(foreign), 'parameter')} from outside the task's bank; "
            f"the first is {name}. Even without a gradient, momentum and weight decay would move them. Return a new "
            "optimizer over learner.active_bank.parameters() alone for every task."
        )
    ids = [id(parameter) for parameter in held]
    missing = [name for name, p in bank.named_parameters() if p.requires_grad and id(p) not in ids]
    if missing or len(ids) != len(mine):
        fault = (
            f"lacks {len(missing)} of them (the first is {missing[0]})"
            if missing
            else "holds some of them more than once"
        )
        raise IsolationError(
            f"task {task!r}: the bank has {len(mine)} trainable parameters, and the optimizer {fault}; give it all of "
            "learner.active_bank.parameters(), each once."
        )


def check_frozen(task: str, bank: Bank, everything: nn.Module) -> None:
    """Raise `IsolationError` if anything outside the bank is trainable or has a gradient."""
    mine = {id(p) for p in bank.parameters()}
    for name, parameter in everything.named_parameters(remove_duplicate=False):
        if id(parameter) not in mine and (parameter.requires_grad or parameter.grad is not None):
            state = "is trainable" if parameter.requires_grad else "has a gradient"
            raise IsolationError(
                f"task {task!r}: {name} {state}, but only the bank of the task may be trained. "
                "Some code set requires_grad or .grad after the task started; leave both to the learner."
            )


def check_modes(task: str, model: nn.Module, *, dropout: bool) -> None:
    """Raise `IsolationError` if a module of the backbone is in training mode.

    Args:
        task: name of the task.
        model: the backbone.
        dropout: whether the task asked for backbone dropout; then only modules with running statistics are checked.
    """
    for name, module in model.named_modules():
        if module.training and (not dropout or moves_in_training(module)):
            raise IsolationError(
                f"task {task!r}: the backbone's module {name or '(the model itself)'} is in training mode, so dropout "
                "or running statistics would change predictions. Some code called .train() on the backbone: call .eval() on "
                "it, and use training.backbone_dropout for dropout during training."
            )
