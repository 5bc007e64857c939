"""Schema of a task's ``split``: one labelled data set as several tasks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from continual_petl._strict_model import UserSpec
from continual_petl.streams.schema.training_spec import Int


class SplitSpec(UserSpec):
    """Split a data set by label into several tasks; each label belongs to one of them."""

    classes_per_task: Annotated[Int, Field(ge=2, examples=[10])]
    """Number of labels per task; the last task may have fewer, but at least two."""
    seed: Annotated[Int, Field(ge=0, lt=2**63)] = 0
    """Determines which labels form a task, and the order of the tasks; the stream's seed has no effect."""
