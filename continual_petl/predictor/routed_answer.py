"""The prediction for a row whose task was not named; needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from continual_petl import _notebook
from continual_petl.heads.words import Answer

Unknown = Literal["reject", "nearest"]
"""What happens to a row that does not resemble the rows of any task: it gets no prediction, or the prediction of the most
probable task."""


@dataclass(frozen=True, kw_only=True)
class RoutedAnswer(_notebook.Pretty):
    """The prediction for a row whose task was not named."""

    task: str | None
    """The task whose bank predicted; None if the row does not resemble the rows of any task."""
    task_probability: float
    """Probability of the most probable task, among all tasks that take such rows."""
    runners_up: Mapping[str, float]
    """The next most probable tasks; for a row without a prediction, the most probable task is included."""
    answer: Answer | None
    """The prediction; None if the task is unknown."""
    near_tie: bool = False
    """Whether the same row in another batch could get another task, or be unknown in one of them only."""
