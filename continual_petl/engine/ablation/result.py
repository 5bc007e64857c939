"""The result of an ablation: the score of a learned bank without its modifications in spans of layers.

Houlsby et al. 2019, section 3.6 and figure 6: the modifications are removed from every continuous span of layers, without
retraining, and the score is compared with the full bank's score. Computed by `continual_petl.engine.ablation.measure`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from continual_petl._strict_model import StrictModel
from continual_petl.errors import InputError
from continual_petl.report.figures.style import COLOURS, Drawing, as_figure, grid, shown, titled

if TYPE_CHECKING:
    import plotly.graph_objects as go


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


class AblatedSpan(StrictModel):
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


class Ablation(StrictModel):
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
    def is_complete(self) -> bool:
        """Whether every span of layers was removed."""
        return len(self.cells) == self.layers * (self.layers + 1) // 2

    @property
    def is_relative(self) -> bool:
        """Whether relative changes are defined; if not, only scores can be shown."""
        return self.full is not None and self.full > 0

    def __getitem__(self, span: tuple[int, int]) -> AblatedSpan:
        """Return the cell for a first and a last layer, or raise `KeyError` if it was not measured."""
        cell = next((cell for cell in self.cells if (cell.first, cell.last) == span), None)
        if cell is None:
            raise KeyError(f"layers {span[0]} to {span[1]} were not removed in this ablation")
        return cell

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values; `from_json` restores the object."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the ablation written by `to_json`.

        Raises:
            InputError: if it is not a valid ablation.
        """
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            where = "".join(f"{part}: " for part in first["loc"])
            raise InputError(
                f"not a valid ablation: {where}{first['msg'].removeprefix('Value error, ')}; give one of the ablations "
                "that `continual-petl ablate --output` wrote."
            ) from error

    def figure(self) -> go.Figure:
        """Return the heat map of the paper's figure 6, as a plotly figure; a notebook shows it inline."""
        return as_figure(drawn(self))


def drawn(ablation: Ablation) -> Drawing:
    """Return the heat map: relative change in percent, or scores if changes are undefined (see `relative_change`)."""
    relative = ablation.is_relative
    count = ablation.layers
    cells = {(cell.first, cell.last): cell for cell in ablation.cells}
    values = {
        span: (None if cell.relative is None else 100 * cell.relative) if relative else cell.score
        for span, cell in cells.items()
    }
    shares = [[values.get((first, last)) for last in range(count)] for first in range(count)]
    words = [
        [_words(ablation, cells[first, last]) if (first, last) in cells else "" for last in range(count)]
        for first in range(count)
    ]
    names, frames = layer_names(ablation), [_frame(number) for number in range(count) if (number, number) in cells]
    return grid(
        shares,
        names,
        names,
        colorbar=titled("change in %" if relative else shown(ablation.metric)),
        text=words,
        written="%{z:.1f}" if relative else "%{z:.3f}",
        x="last layer removed",
        y="first layer removed",
        height=140 + 30 * count,
        shapes=frames,
    )


def layer_names(ablation: Ablation) -> list[str]:
    """Return the indices of the layers; for an encoder-decoder, each is followed by enc or dec."""
    if len(ablation.stacks) != 2:
        return [str(number) for number in range(ablation.layers)]
    return [f"{number} {'enc' if number < ablation.stacks[0] else 'dec'}" for number in range(ablation.layers)]


def _words(ablation: Ablation, cell: AblatedSpan) -> str:
    layers = f"layer {cell.first}" if cell.first == cell.last else f"layers {cell.first} to {cell.last}"
    change = "" if cell.relative is None else f" ({100 * cell.relative:+.2f} %)"
    removed = any(cell.first <= layer <= cell.last for layer in ablation.modified)
    nothing = "" if removed else "<br>the bank has no modifications in these layers"
    return (
        f"without {layers}<br>{shown(ablation.metric)} {in_words(cell.score)} instead of {in_words(ablation.full)}{change}"
        f"{nothing}"
    )


def in_words(value: float | None) -> str:
    """Return a score in words."""
    return "not defined" if value is None else f"{value:.4f}"


def _frame(number: int) -> dict[str, Any]:
    """Return the frame of one diagonal cell."""
    ends = {"x0": number - 0.5, "x1": number + 0.5, "y0": number - 0.5, "y1": number + 0.5}
    return {"type": "rect", **ends, "line": {"color": COLOURS[2], "width": 2}}
