"""Which formats can express a task: decided by the functions that write them, from the plan, before anything is learned.

Only the structure of a bank is read, never its values, with one exception: factors (IA3) before a ReLU can be expressed by
`adapters` only if they are not negative, which is known after training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from transformers import PreTrainedTokenizerBase

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.forms.rescale import Rescale
from continual_petl.errors import InputError
from continual_petl.exchange.adapterhub.adapter import adapterhub_adapter
from continual_petl.exchange.adapterhub.low_rank import NEGATIVE
from continual_petl.exchange.formats import (
    FORMATS,
    ONLY_IF,
    CannotExpressError,
    Format,
    refused_by_bank,
    without_method,
)
from continual_petl.exchange.merged import check_merged
from continual_petl.exchange.peft.adapter import peft_adapter
from continual_petl.exchange.subject import Subject, why_not_at_all
from continual_petl.kind_registry import kind_of
from continual_petl.learner.plan import build_bank
from continual_petl.learner.task_plan import TaskPlan

_CHECKS: Mapping[Format, Callable[[Subject], object]] = {
    "merged": check_merged,
    "peft": peft_adapter,
    "adapters": lambda subject: adapterhub_adapter(subject, "name"),
}


def why_not(subject: Subject, format: Format) -> str | None:
    """Return why a format cannot express a task; None if it can."""
    if (why := refused_by_bank(subject.plan.bank).get(format)) is not None:
        return why
    kind = kind_of(subject.plan)
    if kind.auto_class is None or format not in kind.formats:
        only = "" if kind.auto_class is None else f", except as {' or '.join(kind.formats)}"
        since = "" if kind.several is None else f", since {kind.several}, which the code of an export would have to do"
        return f"exports are not written for tasks of kind {kind.name}{only}{since}"
    try:
        _CHECKS[format](subject)
    except CannotExpressError as error:
        return error.why
    return None


def check_format(subject: Subject, format: Format) -> None:
    """Raise `InputError` if a format cannot express a task; the message names the formats that can."""
    why = why_not(subject, format)
    if why is None:
        return
    able = [
        other_format for other_format in FORMATS if other_format != format and why_not(subject, other_format) is None
    ]
    instead = (
        f"This task can be exported in format {' or '.join(map(repr, able))}, or use Run.predict"
        if able
        else "No format can express this task: use Run.predict, or continual-petl serve"
    )
    raise InputError(f"{CannotExpressError(subject.plan.name, format, why)} {instead}.")


def announced(
    plan: TaskPlan, backbone: Backbone, tokenizer: PreTrainedTokenizerBase | None, max_length: int
) -> dict[str, str | None]:
    """Return, for each format, why a task cannot be exported in it once it is learned; None if it can.

    A reason that begins with `ONLY_IF` is a condition on the learned bank.

    Args:
        plan: the task.
        backbone: the backbone that it is learned on, in any precision.
        tokenizer: the backbone's tokenizer; None if it reads images.
        max_length: maximum tokens per row.
    """
    if (why := why_not_at_all(backbone)) is not None:
        return {name: why for name in FORMATS}
    # Allocated, but not initialised: of its values, only the signs of factors are ever read.
    bank = build_bank(plan, backbone, folded=True).requires_grad_(False).to(backbone.model.device)
    for placement in bank.placements():
        if isinstance(placement.delta, Rescale):
            placement.delta.vector.fill_(-1.0)
    subject = Subject.of(plan, bank, backbone, {}, tokenizer, max_length)
    found: dict[str, str | None] = {name: why_not(subject, name) for name in FORMATS}
    if found["adapters"] == without_method(NEGATIVE):
        found["adapters"] = f"{ONLY_IF}no factor of the FFN's inner states is negative after training"
    return found
