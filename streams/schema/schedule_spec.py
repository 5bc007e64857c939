"""Schema of ``training.schedule``: the learning rate after the warm-up, as a bare name or with options.

Names and options are those of `transformers.get_scheduler`. The warm-up is the same for all of them, and has a key of its own
(``training.warmup``).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    model_serializer,
    model_validator,
)

from continual_petl._strict_model import AS_TEXT, UserSpec
from continual_petl.streams.schema.data_spec import AS_MAPPING

ScheduleName = Literal[
    "linear",
    "constant",
    "constant_with_warmup",
    "cosine",
    "cosine_with_restarts",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "polynomial",
    "inverse_sqrt",
    "warmup_stable_decay",
]
_MIN_LR = ("num_cycles", "min_lr", "min_lr_rate")
_OPTIONS: dict[str, tuple[str, ...]] = {
    **{name: () for name in get_args(ScheduleName)},
    "cosine": ("num_cycles",),
    "cosine_with_restarts": ("num_cycles",),
    "cosine_with_min_lr": _MIN_LR,
    "cosine_warmup_with_min_lr": _MIN_LR,
    "polynomial": ("lr_end", "power"),
    "inverse_sqrt": ("timescale",),
    "warmup_stable_decay": ("num_decay_steps", "decay_type", "min_lr_ratio", "num_cycles"),
}
_REFUSED = ("reduce_lr_on_plateau", "greedy")
Positive = Annotated[float, Field(strict=True, gt=0)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Steps = Annotated[int, Field(strict=True, ge=1)]


def _known(name: object) -> object:
    if name in _REFUSED:
        raise ValueError(
            f"got {name!r}, which follows a metric, so the learning rate of a step is not known before: choose one of "
            f"{', '.join(_OPTIONS)}"
        )
    return name


Name: TypeAlias = Annotated[ScheduleName, BeforeValidator(_known)]


class ScheduleSpec(UserSpec):
    """A schedule with options, such as {name: cosine_with_restarts, num_cycles: 2}; a bare name has none. Options, and their
    defaults, are those of `transformers.get_scheduler`.
    """

    name: Annotated[Name, Field(examples=["cosine"])]
    """The schedule."""
    num_cycles: Positive | None = None
    """Waves of the cosine (default 0.5, from the peak to the end), or number of restarts (default 1)."""
    min_lr: Annotated[float, Field(strict=True, ge=0)] | None = None
    """Learning rate at the end of cosine_with_min_lr and cosine_warmup_with_min_lr, which need this key or min_lr_rate."""
    min_lr_rate: Share | None = None
    """The same, as a share of the peak."""
    lr_end: Annotated[float, Field(strict=True, ge=0)] | None = None
    """Learning rate at the end of polynomial (default 1e-7)."""
    power: Positive | None = None
    """Power of polynomial (default 1)."""
    timescale: Steps | None = None
    """Steps after which inverse_sqrt has fallen to 1/sqrt(2) of the peak (default: as many as the warm-up has, or 10,000)."""
    num_decay_steps: Steps | None = None
    """Number of last steps in which the learning rate of warmup_stable_decay falls, at most all steps after the warm-up;
    required there."""
    decay_type: Literal["linear", "cosine", "1-sqrt"] | None = None
    """How warmup_stable_decay falls (default cosine)."""
    min_lr_ratio: Share | None = None
    """Learning rate at the end of warmup_stable_decay, as a share of the peak (default 0)."""

    @property
    def options(self) -> dict[str, Any]:
        """The options that were given."""
        return {key: value for key in _OPTIONS[self.name] if (value := getattr(self, key)) is not None}

    @model_serializer(mode="wrap")
    def _only_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value is not None}

    @model_validator(mode="after")
    def _options_fit(self) -> ScheduleSpec:
        takes = _OPTIONS[self.name]
        given = [key for key in type(self).model_fields if key != "name" and getattr(self, key) is not None]
        if unread := [key for key in given if key not in takes]:
            allowed = f"its options are {', '.join(takes)}" if takes else "it has no options"
            raise ValueError(f"{', '.join(unread)} has no effect with the schedule {self.name}: {allowed}")
        if "min_lr" in takes and (self.min_lr is None) == (self.min_lr_rate is None):
            raise ValueError(
                f"the schedule {self.name} needs one of min_lr (a learning rate) and min_lr_rate (a share of the peak), "
                f"such as {{name: {self.name}, min_lr_rate: 0.1}}"
            )
        if "num_decay_steps" in takes and self.num_decay_steps is None:
            raise ValueError(
                f"the schedule {self.name} needs num_decay_steps, the number of last steps in which the learning rate "
                f"falls, such as {{name: {self.name}, num_decay_steps: 100}}"
            )
        return self


def _shape(value: Any) -> str | None:
    return AS_TEXT if isinstance(value, str) else AS_MAPPING if isinstance(value, dict | ScheduleSpec) else None


def _shortest(value: str | ScheduleSpec) -> str | ScheduleSpec:
    """Return a schedule without options as its name, so that both ways to write it are the same setting."""
    spec = with_options(value)
    return spec if spec.options else spec.name


def with_options(schedule: str | ScheduleSpec) -> ScheduleSpec:
    """Return a schedule that may be a bare name as one with options."""
    return schedule if isinstance(schedule, ScheduleSpec) else ScheduleSpec.checked({"name": schedule})


Schedule: TypeAlias = Annotated[
    Annotated[Name, Tag(AS_TEXT)] | Annotated[ScheduleSpec, Tag(AS_MAPPING)],
    Discriminator(
        _shape,
        custom_error_type="shape",
        custom_error_message="must be the name of a schedule, or a mapping with a name and options",
    ),
    AfterValidator(_shortest),
]
