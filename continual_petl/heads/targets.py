"""The mean and the standard deviation of a regression task's training targets.

A head starts near zero and moves in small steps, so it cannot reach targets such as 120 or 1,600,000,000 in any reasonable
time. It therefore learns standardised targets, ``(y - mean) / deviation``, and its output ``o`` is the prediction
``o deviation + mean``. Both are computed in float64, because float32 cannot tell 1,600,000,000 from 1,600,000,001. The
deviation is the population's, divided by the number of rows: standardised training targets then have a mean square of
exactly one, which is the loss of predicting their mean. Both numbers are correctly rounded, so they depend neither on the
order of the rows nor on the machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from continual_petl._strict_model import StrictModel
from continual_petl.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 1e300
"""Largest absolute value of a target, and the inverse of the smallest deviation: what is computed from them stays finite."""


class Targets(StrictModel):
    """The training targets of a regression task, as its head needs to know them."""

    mean: Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
    deviation: Annotated[float, Field(ge=1 / LARGEST, le=LARGEST)]
    """Population standard deviation; 1 if all targets are equal."""

    @classmethod
    def of(cls, task: str, values: Sequence[float]) -> Targets:
        """Return the mean and the deviation of a task's training targets.

        Args:
            task: name of the task, for messages.
            values: the targets, finite and at most `LARGEST`.

        Raises:
            InputError: if they differ by so little that the differences cannot be computed with.

        Example:
            >>> Targets.of("ages", [100.0, 140.0])
            Targets(mean=120.0, deviation=20.0)
        """
        deviation = statistics.pstdev(values)
        if 0 < deviation < 1 / LARGEST:
            raise InputError(
                f"task {task!r}: its training targets deviate from their mean by {deviation:g}, and double precision cannot "
                f"compute with less than {1 / LARGEST:g}: write the targets in smaller units."
            )
        return cls(mean=statistics.mean(values), deviation=deviation or 1.0)

    def standardised(self, targets: Tensor) -> Tensor:
        """Return targets in deviations from the mean, float32."""
        return ((as_double(targets) - self.mean) / self.deviation).float()

    def restored(self, outputs: Tensor) -> Tensor:
        """Return the predictions of a head from its outputs, in the units of the targets, float64."""
        return as_double(outputs) * self.deviation + self.mean


AS_GIVEN = Targets(mean=0.0, deviation=1.0)
"""For a head that predicts in the units of the targets, such as one that another library has trained."""


def as_double(values: Tensor) -> Tensor:
    """Return values in float64; Apple's GPUs have none, so the CPU computes with their values."""
    return (values.cpu() if values.device.type == "mps" else values).double()
