"""Scores of a learned bank without its modifications in spans of layers, as data: what `Ablation` says, undrawn."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from continual_petl._frozen import FrozenModel

Layer = Annotated[int, Field(strict=True, ge=0, lt=1000)]
"""The number of a layer; more of them than any backbone has would be a figure of any size."""


def relative_change(score: float | None, full: float | None) -> float | None:
    """Return ``score / full - 1``: -0.1 is a tenth lost, 0 no change.

    None, which is "not defined", where one of the two is not defined (a correlation of constant answers), and where ``full``
    is zero or negative: nothing is a share of zero, and of a negative score a better one would look like a loss.

    Example:
        >>> relative_change(0.75, 1.0), relative_change(0.5, 0.0)
        (-0.25, None)
    """
    if score is None or full is None or full <= 0:
        return None
    change = score / full - 1
    return change if math.isfinite(change) else None


class AblatedSpan(FrozenModel):
    """One cell: what the bank scores without its modifications in the layers ``first`` to ``last``."""

    first: Layer
    """First layer that is without them."""
    last: Layer
    """Last one; it is without them too."""
    score: float | None
    """By the task's metric; None where it is not defined."""
    relative: float | None
    """Change against the whole bank, see `relative_change`; None where that is not defined."""
    scores: dict[str, float]
    """All scores of the task's kind that are defined, by name."""


class Ablated(FrozenModel):
    """What is known of one task's bank: its score as a whole, and one cell for each span of layers.

    Layers are counted from 0; those of an encoder-decoder encoder first, then decoder, as ``layers`` of a bank counts them.
    """

    format_version: Literal[1] = 1
    task: str
    metric: str
    """The task's own."""
    split: Literal["validation", "test"]
    num_examples: Annotated[int, Field(strict=True, ge=0)]
    layers: Annotated[int, Field(strict=True, ge=1, lt=1000)]
    """Of the backbone, all stacks together."""
    stacks: tuple[Layer, ...]
    """How many of them are in each stack: encoder and decoder, or the only one."""
    modified: tuple[Layer, ...]
    """Layers in which the bank has a modification. Where a span holds none of them, nothing is removed."""
    stays: tuple[str, ...]
    """What of the bank acts in every cell, in words, besides its head."""
    full: float | None
    """Score of the whole bank; None where it is not defined."""
    scores: dict[str, float]
    """All scores of the whole bank."""
    cells: tuple[AblatedSpan, ...]
    """In order of the first layer, then the last."""
    notices: tuple[str, ...] = ()
    """What the reader should know."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if sum(self.stacks) != self.layers:
            raise ValueError(f"stacks: {list(self.stacks)} are not {self.layers} layers together")
        if self.full != self.scores.get(self.metric):
            raise ValueError(f"full: {self.full} is not the {self.metric} among the scores")
        spans = [(cell.first, cell.last) for cell in self.cells]
        if spans != sorted(set(spans)):
            raise ValueError("cells: not in order of their first and last layer, each once")
        for cell in self.cells:
            if not cell.first <= cell.last < self.layers:
                raise ValueError(f"cells: layers {cell.first} to {cell.last} are no span of {self.layers} layers")
            if cell.score != cell.scores.get(self.metric):
                raise ValueError(f"cells: {cell.score} of layers {cell.first} to {cell.last} is not among the scores")
            if cell.relative != relative_change(cell.score, self.full):
                raise ValueError(f"cells: {cell.relative} is not the change of layers {cell.first} to {cell.last}")
        return self

    @property
    def is_relative(self) -> bool:
        """Whether changes against the whole bank are defined; where they are not, scores are all there is to show."""
        return self.full is not None and self.full > 0
