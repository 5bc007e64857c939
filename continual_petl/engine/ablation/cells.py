"""The data of an ablation: scores of a learned bank without its modifications in spans of layers."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from continual_petl._frozen import FrozenModel

Layer = Annotated[int, Field(strict=True, ge=0, lt=1000)]
"""A layer number; bounded, since the size of figures grows with it."""


def relative_change(score: float | None, full: float | None) -> float | None:
    """Return ``score / full - 1``: -0.1 means that a tenth is lost, 0 that nothing changes.

    The change is undefined (None) if one of the scores is undefined (a correlation of constant predictions), or if ``full``
    is zero or negative: one cannot divide by zero, and compared with a negative score, a better score would look like a loss.

    Example:
        >>> relative_change(0.75, 1.0), relative_change(0.5, 0.0)
        (-0.25, None)
    """
    if score is None or full is None or full <= 0:
        return None
    change = score / full - 1
    return change if math.isfinite(change) else None


class AblatedSpan(FrozenModel):
    """One cell: the bank's score without its modifications in layers ``first`` to ``last``."""

    first: Layer
    """First layer without modifications."""
    last: Layer
    """Last layer without modifications, inclusive."""
    score: float | None
    """Score by the task's metric; None if undefined."""
    relative: float | None
    """Change relative to the full bank, see `relative_change`; None if undefined."""
    scores: dict[str, float]
    """All scores of the task's kind by name, without undefined ones."""


class Ablated(FrozenModel):
    """The ablation data of one task's bank: the score of the full bank, and one cell for each span of layers.

    Layers are counted from 0; in an encoder-decoder, first the encoder's, then the decoder's, as in a bank's ``layers``.
    """

    format_version: Literal[1] = 1
    task: str
    metric: str
    """The task's metric."""
    split: Literal["validation", "test"]
    num_examples: Annotated[int, Field(strict=True, ge=0)]
    layers: Annotated[int, Field(strict=True, ge=1, lt=1000)]
    """Total number of layers of the backbone across all stacks."""
    stacks: tuple[Layer, ...]
    """Number of layers in each stack: encoder and decoder, or the only one."""
    modified: tuple[Layer, ...]
    """Layers in which the bank has a modification. A span without any of them removes nothing."""
    stays: tuple[str, ...]
    """Descriptions of the parts of the bank, besides its head, that are kept in every cell."""
    full: float | None
    """Score of the full bank; None if undefined."""
    scores: dict[str, float]
    """All scores of the full bank."""
    cells: tuple[AblatedSpan, ...]
    """Ordered by first layer, then last."""
    notices: tuple[str, ...] = ()
    """Notices for the reader."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if sum(self.stacks) != self.layers:
            raise ValueError(f"stacks: {list(self.stacks)} do not add up to {self.layers} layers")
        if self.full != self.scores.get(self.metric):
            own = self.scores.get(self.metric)
            raise ValueError(f"full: {self.full} does not match scores[{self.metric!r}] ({own})")
        spans = [(cell.first, cell.last) for cell in self.cells]
        if spans != sorted(set(spans)):
            raise ValueError("cells: not sorted by first and last layer, or not unique")
        for cell in self.cells:
            if not cell.first <= cell.last < self.layers:
                raise ValueError(f"cells: layers {cell.first} to {cell.last} are not a span of {self.layers} layers")
            if cell.score != cell.scores.get(self.metric):
                raise ValueError(f"cells: {cell.score} of layers {cell.first} to {cell.last} is not among the scores")
            if cell.relative != relative_change(cell.score, self.full):
                raise ValueError(f"cells: {cell.relative} is not the change of layers {cell.first} to {cell.last}")
        return self

    @property
    def is_relative(self) -> bool:
        """Whether relative changes are defined; if not, only scores can be shown."""
        return self.full is not None and self.full > 0
