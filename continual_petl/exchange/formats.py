"""The formats of exports: their names, in words, and which banks they cannot express. Never imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, get_args

from continual_petl.banks.config.spec import BankSpec
from continual_petl.errors import InputError

Format = Literal["merged", "peft", "adapters"]
FORMATS: tuple[Format, ...] = get_args(Format)
ONLY_IF = "only if "
"""How a reason begins that depends on the values of the learned bank."""


class CannotExpressError(InputError):
    """A format cannot express a task.

    Args:
        task: name of the task.
        format: the format.
        why: the reason.
    """

    def __init__(self, task: str, format: str, why: str) -> None:
        self.task, self.format, self.why = task, format, why
        super().__init__(f"format: got {format!r} for task {task!r}, but {why}.")


def in_words(found: Mapping[str, str | None]) -> str:
    """Return in one sentence which formats can express a task, and why the others cannot."""
    able = [name for name in FORMATS if name in found and found[name] is None]
    reasons: dict[str, list[str]] = {}
    for name in FORMATS:
        if (why := found.get(name)) is not None:
            reasons.setdefault(why, []).append(name)
    others = [
        f"{' and '.join(names)} {why}" if why.startswith(ONLY_IF) else f"not as {' or '.join(names)} ({why})"
        for why, names in reasons.items()
    ]
    first = f"as {' or '.join(able)}" if able else "in no format; it can be served"
    return "; ".join([first, *others])


ADAPTERS_FORMS = frozenset({"attention", "bottleneck", "lowrank", "rescale"})
"""The forms that have a method in `adapters`."""
_PEFT_FORMS = ({"lowrank"}, {"decomposed"}, {"lowrank", "decomposed"}, {"rescale"})
PEFT_VIRTUAL = frozenset({"prompt", "attention"})
"""Forms that peft computes as virtual tokens: each of them alone, without trained LayerNorms, and around a whole class."""


def _merged(spec: BankSpec) -> str | None:
    stuck = spec.not_mergeable
    return f"{' and '.join(stuck)} cannot be merged into weights" if stuck else None


def _peft(spec: BankSpec) -> str | None:
    forms, own = {m.form for m in spec.modifications}, spec.layernorms == "own"
    if forms in _PEFT_FORMS or (len(forms) == 1 and forms <= PEFT_VIRTUAL and not own) or (own and not forms):
        return None
    parts = [*sorted(forms), *(["LayerNorms of its own"] if own else [])]
    return (
        f"peft has no adapter for a bank with {' and '.join(parts) or 'nothing but a head'}. It has adapters for low-rank "
        "changes (lora, dora), with or without trained LayerNorms, for factors (ia3), for LayerNorms, for a prompt, and "
        "for prefixes"
    )


def _adapters(spec: BankSpec) -> str | None:
    forms = {m.form for m in spec.modifications}
    if spec.layernorms == "own":
        return without_method("its bank has LayerNorms of its own, and adapters keeps those of the model")
    if not forms or not forms <= ADAPTERS_FORMS:
        return without_method(f"its bank has {' and '.join(sorted(forms)) or 'nothing but a head'}")
    return None


def without_method(why: str) -> str:
    """Return the reason for a bank that `adapters` has no method for, with what it has methods for."""
    return (
        f"{why}. Bottlenecks after or beside a sub-layer with frozen LayerNorms, prefixes, LoRA of one rank and factor, IA3, "
        "and unions of these can be exported"
    )


_CHECKS: Mapping[Format, Callable[[BankSpec], str | None]] = {"merged": _merged, "peft": _peft, "adapters": _adapters}


def refused_by_bank(spec: BankSpec) -> dict[str, str]:
    """Return, for each format that cannot express a bank on any backbone, the reason.

    Example:
        >>> from continual_petl.banks.config.presets import PRESETS
        >>> sorted(refused_by_bank(PRESETS["houlsby"])), sorted(refused_by_bank(PRESETS["lora"]))
        (['adapters', 'merged', 'peft'], [])
    """
    if spec.fuse:
        return dict.fromkeys(_CHECKS, f"its bank reads other tasks' banks ({', '.join(spec.fuse)})")
    return {format: why for format, check in _CHECKS.items() if (why := check(spec)) is not None}


def check_bank(task: str, spec: BankSpec, format: Format) -> None:
    """Raise `CannotExpressError` if a format cannot express a bank on any backbone."""
    if (why := refused_by_bank(spec).get(format)) is not None:
        raise CannotExpressError(task, format, why)
