"""Schema of ``routing``: what a task stores to recognise its rows, and the limit below which a row gets no prediction."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from continual_petl._strict_model import UserSpec
from continual_petl.errors import InputError
from continual_petl.streams.schema.training_spec import Float

ResolvedRouting = Literal["compact", "full", "small", "off"]
Routing = Literal["auto", "compact", "full", "small", "off"]
REJECT = 0.01
"""The limit of a task, unless the stream file gives another one."""
Share = Annotated[Float, Field(gt=0, lt=1)]


def _limit(value: object) -> object:
    """Return a limit that a caller may give.

    Raises:
        ValueError: if it is none.
    """
    if value is None or (isinstance(value, str) and value == "never") or (isinstance(value, float) and 0 < value < 1):
        return value
    raise ValueError(
        f"got {value!r:.80}; allowed: a number above 0 and below 1, or never. With 0.05, a row gets no prediction if less "
        "than 5 % of the task's own rows lie as far from the task; with never, every row gets one. Leave it out for the "
        "limit of each task"
    )


Reject = Annotated[float | Literal["never"] | None, BeforeValidator(_limit)]
"""The limit that a caller gives: a row without a task's name gets no prediction if its share `Prediction.known` is below it;
``never``: every row gets one; None: the limit that its task stored when it was learned."""


class RoutingSpec(UserSpec):
    """How the rows of tasks are recognised without a task's name. A bare word, full, means {statistics: full}."""

    statistics: Routing = "auto"
    """The data that each task stores with its certificate: mean and covariance of its training rows in three layers of the
    backbone, exactly (full) or in at most 100 kB (compact), in one layer (small), or nothing (off). auto: compact; with
    protocol: class, full."""
    reject: Share = REJECT
    """A row gets no prediction if less than this share of the task's own rows lies as far from the task, unless whoever asks
    gives another limit. With 0.05, about 5 % of a task's own rows get none, and more of the rows that belong to no task."""

    @model_validator(mode="before")
    @classmethod
    def _bare_word(cls, value: Any) -> Any:
        return {"statistics": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _reject_is_used(self) -> RoutingSpec:
        if self.statistics == "off" and self.reject != REJECT:
            raise ValueError(_unused(self.reject))
        return self


class TaskRoutingSpec(UserSpec):
    """How the rows of one task are recognised. A bare word, off, means {statistics: off}."""

    statistics: Literal["off"] | None = None
    """off: no data is stored for recognising rows of this task; null means the stream's setting."""
    reject: Share | None = None
    """The limit of this task; null means the stream's."""

    @model_validator(mode="before")
    @classmethod
    def _bare_word(cls, value: Any) -> Any:
        return {"statistics": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _reject_is_used(self) -> TaskRoutingSpec:
        if self.statistics == "off" and self.reject is not None:
            raise ValueError(_unused(self.reject))
        return self


def _unused(reject: float) -> str:
    return (
        f"reject: got {reject}, but with statistics: off, rows cannot be recognised, so a limit has no effect: remove one of "
        "the two"
    )


def check_reject(reject: object, name: str = "reject") -> None:
    """Raise `InputError` unless a caller may give this limit; None stands for the limit of each task.

    Args:
        reject: what was given.
        name: the name of the argument.
    """
    try:
        _limit(reject)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None
