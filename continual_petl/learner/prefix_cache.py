"""Decides whether the states below a bank can be computed once for a task, and whether that pays off.

A bank that changes only upper layers reads the same states of the frozen layers below in every epoch. They can be cached
unless the lower layers are random (dropout). This pays off if each state is read at least twice, since computing the states
costs one pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from continual_petl.banks.bank import Bank
from continual_petl.banks.states_below import lowest_layer
from continual_petl.errors import InputError
from continual_petl.kind_registry import kind_of
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.streams.schema.stream_spec import ResolvedTraining


def why_not_kept(plan: TaskPlan, bank: Bank) -> str | None:
    """Return why the bank or the settings rule out caching the states below a task's bank, or None."""
    sites = bank.sites
    if len(sites.anatomy.stacks) > 1:
        return f"models of family {sites.anatomy.family!r} have two stacks, an encoder and a decoder"
    if plan.bank.num_prompt_vectors:
        return "its bank has a prompt, which comes before all layers"
    if lowest_layer(bank) == 0:
        return (
            "its bank changes the lowest layer, so there are no frozen layers below it (use layers: top-3, for example)"
        )
    if (several := kind_of(plan).several) is not None:
        return f"{several}, and states are cached row by row"
    if plan.training.packing:
        return "training.packing puts rows into different windows in every epoch, and states are cached row by row"
    if plan.training.backbone_dropout:
        return "training.backbone_dropout makes the states of the frozen layers random"
    return None


def check_kept(plan: TaskPlan, bank: Bank) -> None:
    """Raise `InputError` if a task asks for a cache that `why_not_kept` rules out."""
    why = why_not_kept(plan, bank) if plan.training.prefix_cache == "on" else None
    if why is not None:
        raise cannot_cache_error(plan, why)


def cannot_cache_error(plan: TaskPlan, why: str) -> InputError:
    """Return the error for a task whose ``prefix_cache: on`` is not possible."""
    return InputError(
        f"task {plan.name!r}: training.prefix_cache is 'on', but the states below its bank cannot be cached: {why}. Write "
        "prefix_cache: auto, which caches them where possible and worthwhile, or off."
    )


def num_uses(training: ResolvedTraining, arguments: Mapping[str, Any], num_batches: float) -> float:
    """Return how often training reads a row, on average over the training split.

    Args:
        training: the training settings of the task.
        arguments: the stream's ``trainer`` section; its limits on batches are taken into account.
        num_batches: number of batches in one epoch over the whole training split.
    """
    used = num_batches
    for key in ("limit_train_batches", "overfit_batches"):
        limit = arguments.get(key)
        # In Lightning, 1.0 means all batches and 1 means one batch; overfit_batches: 0 means no limit.
        if isinstance(limit, float) and limit > 0:
            used = min(used, limit * num_batches)
        elif isinstance(limit, int) and not isinstance(limit, bool) and (limit > 0 or key == "limit_train_batches"):
            used = min(used, limit)
    total = (training.epochs or 0) * used if training.max_steps is None else training.max_steps * training.accumulate
    return total / num_batches
