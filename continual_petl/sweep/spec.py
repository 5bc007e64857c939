"""The schema of a sweep file, checked before anything heavy is imported.

The docstrings of the fields become the descriptions of the JSON Schema. Needs only pydantic.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from continual_petl._strict_model import UserSpec
from continual_petl.streams.schema.consistency import Inconsistent, KeyPath
from continual_petl.streams.schema.data_spec import AS_LIST, AS_MAPPING, Text
from continual_petl.streams.schema.training_spec import Bool, Count, Float, Int

_Number = Int | Float
_LEAST = "it must be above 0 with log: true"


class Range(UserSpec):
    """Numbers between two bounds; whole numbers if both bounds are whole."""

    low: Annotated[_Number, Field(examples=[1e-5])]
    """The smallest value."""
    high: Annotated[_Number, Field(examples=[1e-2])]
    """The largest value, inclusive."""
    log: Bool = False
    """Whether to sample log-uniformly: as many values between 1e-5 and 1e-4 as between 1e-3 and 1e-2."""

    @property
    def is_whole(self) -> bool:
        """Whether its values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)


def _shape(value: Any) -> str | None:
    return AS_LIST if isinstance(value, list | tuple) else AS_MAPPING if isinstance(value, dict | Range) else None


Values: TypeAlias = Annotated[
    Annotated[tuple[Any, ...], Tag(AS_LIST), Field(min_length=1)] | Annotated[Range, Tag(AS_MAPPING)],
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
        tree = {"space": {k: v.model_dump() if isinstance(v, Range) else list(v) for k, v in self.space.items()}}
        if problems := clashes(tree | {"sampler": self.sampler, "trials": self.trials}):
            raise Inconsistent(problems)
        return self

    @property
    def num_settings(self) -> int:
        """Number of combinations of the grid; 0 if a range makes it infinite."""
        number = 1
        for values in self.space.values():
            number *= 0 if isinstance(values, Range) else len(values)
        return number

    @property
    def num_trials(self) -> int:
        """Number of settings tried for each task."""
        if self.sampler == "grid":
            return min(self.num_settings, self.trials or self.num_settings)
        assert self.trials is not None
        return self.trials


def clashes(tree: Mapping[str, Any]) -> list[tuple[KeyPath, str]]:
    """Return the keys of a sweep that contradict each other, with reasons.

    Args:
        tree: plain data with (some of) the keys of a sweep; parts of the wrong type are skipped here and reported by the
            schema.
    """
    space = tree.get("space")
    space = space if isinstance(space, dict) else {}
    problems: list[tuple[KeyPath, str]] = []
    for key, values in space.items():
        problems += [(("space", key, *path), text) for path, text in _of_values(values)]
        above = [other for other in space if key.startswith(f"{other}.")]
        problems += [
            (
                ("space", key),
                f"is a part of {other}, which is tried as well: write it into each value there, such as "
                f"{other}: [{{preset: houlsby, bottleneck: 8}}, {{preset: lora, rank: 8}}]",
            )
            for other in above
        ]
    sampler, trials = tree.get("sampler", "grid"), tree.get("trials")
    if sampler == "grid":
        problems += [
            (("space", key), "is a range, but a grid needs a list of values: write them out, or choose sampler: tpe")
            for key, values in space.items()
            if isinstance(values, dict)
        ]
    elif sampler in ("tpe", "random") and trials is None:
        problems.append(
            (
                ("trials",),
                f"is missing, but sampler {sampler} does not stop by itself: add it, for instance `trials: 20`",
            )
        )
    return problems


def _of_values(values: Any) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(values, list | tuple):
        seen: list[Any] = []
        for number, value in enumerate(values):
            if not _is_plain(value):
                what = f"a {type(value).__name__} is not allowed in a sweep; use text, numbers, true, false, null, mappings"
                yield (number,), what
            elif value in seen:
                yield (number,), f"{json.dumps(value)} is in the list twice: keep one of the two"
            seen.append(value)
    elif isinstance(values, dict):
        low, high, log = values.get("low"), values.get("high"), values.get("log", False)
        if not isinstance(low, int | float) or not isinstance(high, int | float):
            return  # the schema reports it
        if low >= high:
            yield ("high",), f"got {high!r}; it must be above low, which is {low!r}"
        if log is True and low <= 0:
            yield ("low",), f"got {low!r}; {_LEAST}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(below) for key, below in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float)


def canonical(settings: Mapping[str, Any]) -> str:
    """Return settings as a string that is the same for equal settings."""
    return json.dumps(settings, sort_keys=True)


def plain_values(values: Sequence[Any]) -> list[Any]:
    """Return values after a round trip through JSON: tuples become lists."""
    plain: list[Any] = json.loads(json.dumps(values))
    return plain
