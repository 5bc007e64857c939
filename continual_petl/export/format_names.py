"""The formats of exports, and in words which of them can express a task. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

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
