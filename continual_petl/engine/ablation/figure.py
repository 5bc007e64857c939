"""Heat map of a bank's scores without its modifications in each span of layers (Houlsby et al. 2019, figure 6).

The row is the first removed layer, the column the last one. Below the diagonal there are no spans, so nothing is drawn (the
paper draws zeros). On the diagonal, which is framed, a single layer is removed; in the top right corner, all layers are.
"""

from __future__ import annotations

from typing import Any

from continual_petl.engine.ablation.cells import Ablated, AblatedSpan
from continual_petl.report.figures.style import COLOURS, Drawing, grid, shown

_MAX_WRITTEN = 12


def figure(ablation: Ablated) -> Drawing:
    """Return the heat map: relative change in percent, or scores if changes are undefined (see `relative_change`)."""
    relative = ablation.is_relative
    count = ablation.layers
    cells = {(cell.first, cell.last): cell for cell in ablation.cells}
    values = {
        span: (None if cell.relative is None else 100 * cell.relative) if relative else cell.score
        for span, cell in cells.items()
    }
    drawn = [[values.get((first, last)) for last in range(count)] for first in range(count)]
    words = [
        [_words(ablation, cells[first, last]) if (first, last) in cells else "" for last in range(count)]
        for first in range(count)
    ]
    written = "%{z:.1f}" if relative else "%{z:.3f}"
    parts = {
        "text": words,
        "texttemplate": written if count <= _MAX_WRITTEN else None,
        "hovertemplate": "%{text}<extra></extra>",
        "hoverongaps": False,
        "colorbar": {"title": {"text": "change in %" if relative else shown(ablation.metric)}},
    }
    names, frames = layer_names(ablation), [_frame(number) for number in range(count) if (number, number) in cells]
    x, y = "last layer removed", "first layer removed"
    return grid(drawn, names, names, parts, x=x, y=y, height=140 + 30 * count, shapes=frames)


def layer_names(ablation: Ablated) -> list[str]:
    """Return the indices of the layers; for an encoder-decoder, each is followed by enc or dec."""
    if len(ablation.stacks) != 2:
        return [str(number) for number in range(ablation.layers)]
    return [f"{number} {'enc' if number < ablation.stacks[0] else 'dec'}" for number in range(ablation.layers)]


def _words(ablation: Ablated, cell: AblatedSpan) -> str:
    layers = f"layer {cell.first}" if cell.first == cell.last else f"layers {cell.first} to {cell.last}"
    change = "" if cell.relative is None else f" ({100 * cell.relative:+.2f} %)"
    removed = any(cell.first <= layer <= cell.last for layer in ablation.modified)
    nothing = "" if removed else "<br>the bank has no modifications in these layers"
    return (
        f"without {layers}<br>{shown(ablation.metric)} {_number(cell.score)} instead of {_number(ablation.full)}{change}"
        f"{nothing}"
    )


def _number(value: float | None) -> str:
    return "not defined" if value is None else f"{value:.4f}"


def _frame(number: int) -> dict[str, Any]:
    """Return the frame of one diagonal cell."""
    ends = {"x0": number - 0.5, "x1": number + 0.5, "y0": number - 0.5, "y1": number + 0.5}
    return {"type": "rect", **ends, "line": {"color": COLOURS[2], "width": 2}}
