"""The schema of a sweep file, checked before anything heavy is imported.

The docstrings of the fields become the descriptions of the JSON Schema. Needs only pydantic.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from continual_petl._strict_model import UserSpec
from continual_petl.streams.schema.consistency import Inconsistent, KeyPath
from continual_petl.streams.schema.data_spec import AS_LIST, AS_MAPPING, Text
from continual_petl.streams.schema.training_spec import Bool, Count, Float, Int

_Number = Int | Float


class Range(UserSpec):
    """Numbers between two bounds; whole numbers if both bounds are whole."""

    low: Annotated[_Number, Field(examples=[1e-5])]
    """The smallest value."""
    high: Annotated[_Number, Field(examples=[1e-2])]
    """The largest value, inclusive."""
    log: Bool = False
    """Whether to sample log-uniformly: as many values between 1e-5 and 1e-4 as between 1e-3 and 1e-2."""

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if self.low >= self.high:
            raise Inconsistent([(("high",), f"got {self.high!r}; it must be above low, which is {self.low!r}")])
        if self.log and self.low <= 0:
            raise Inconsistent([(("low",), f"got {self.low!r}; it must be above 0 with log: true")])
        return self


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: tuples become lists."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        raise ValueError(
            f"got {value!r:.80}; a sweep tries text, finite numbers, true, false, null, and lists and mappings of them"
        ) from None


def _shape(value: Any) -> str | None:
    return AS_LIST if isinstance(value, list | tuple) else AS_MAPPING if isinstance(value, dict | Range) else None


Values: TypeAlias = Annotated[
    Annotated[tuple[Annotated[Any, BeforeValidator(_plain)], ...], Tag(AS_LIST), Field(min_length=1)]
    | Annotated[Range, Tag(AS_MAPPING)],
    Discriminator(
        _shape,
        custom_error_type="shape",
        custom_error_message="must be a list of values, or a mapping with low and high",
    ),
]


class SweepSpec(UserSpec):
    """Which settings are tried for every task, and how.

    Raises:
        InputError: if it contradicts itself; `load_sweep` reports it with line numbers.

    Example:
        >>> SweepSpec(space={"bank.bottleneck": [8, 64], "training.epochs": [3, 20]}).num_settings
        4
    """

    space: Annotated[dict[Text, Values], Field(min_length=1, examples=[{"bank.bottleneck": [8, 64]}])]
    """The search space: dotted keys of a task (bank, training.learning_rate, ...), each with a list of values or a range."""
    sampler: Literal["grid", "tpe", "random"] = "grid"
    """grid: every combination, in the order of the file. tpe: Optuna's tree-structured Parzen estimator. random: independent
    draws."""
    trials: Count | None = None
    """Number of settings to try for each task; null: the whole grid."""
    prune: Literal["none", "median", "halving"] = "median"
    """Which trials to end early, based on the validation score at the end of an epoch. median: trials below the median of the
    other trials. halving: all but the best third (asynchronous successive halving). Only trials with the same number of
    epochs are compared."""
    seeds: Count = 5
    """Number of seeds with which the chosen settings are learned, including the stream's; 1 means only the stream's."""
    seed: Annotated[Int, Field(ge=0, lt=2**63)] = 0
    """Seed of the sampler; the seed for each task is derived from it and the task's name."""

    @model_validator(mode="after")
    def _consistent(self) -> SweepSpec:
        problems: list[tuple[KeyPath, str]] = []
        for key, values in self.space.items():
            path = ("space", key)
            problems += [
                (
                    path,
                    f"is a part of {other}, which is tried as well: write it into each value there, such as "
                    f"{other}: [{{preset: houlsby, bottleneck: 8}}, {{preset: lora, rank: 8}}]",
                )
                for other in self.space
                if key.startswith(f"{other}.")
            ]
            if not isinstance(values, Range):
                repeated = ((number, value) for number, value in enumerate(values) if value in values[:number])
                problems += [
                    ((*path, number), f"{json.dumps(value)} is in the list twice: keep one of the two")
                    for number, value in repeated
                ]
            elif self.sampler == "grid":
                text = "is a range, but a grid needs a list of values: write them out, or choose sampler: tpe"
                problems.append((path, text))
        if self.sampler != "grid" and self.trials is None:
            text = f"is missing, but sampler {self.sampler} does not stop by itself: add it, for instance `trials: 20`"
            problems.append((("trials",), text))
        if problems:
            raise Inconsistent(problems)
        return self

    @property
    def num_settings(self) -> int:
        """Number of combinations of the grid; 0 if a range makes it infinite."""
        return math.prod(0 if isinstance(values, Range) else len(values) for values in self.space.values())

    @property
    def num_trials(self) -> int:
        """Number of settings tried for each task."""
        if self.sampler == "grid":
            return min(self.num_settings, self.trials or self.num_settings)
        assert self.trials is not None
        return self.trials
