"""How many rows of a split a task takes."""

from __future__ import annotations

from continual_petl._frozen import FrozenModel
from continual_petl.streams.schema.training_spec import Count


class LimitsSpec(FrozenModel):
    """Take only so many rows of a split, chosen by the seed and not by their order in the file."""

    train: Count | None = None
    """Rows of the training split; null means all."""
    validation: Count | None = None
    """Rows of the validation split; null means all."""
    test: Count | None = None
    """Rows of the test split; null means all."""
