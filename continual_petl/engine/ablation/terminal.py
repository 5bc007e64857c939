"""Show an ablation in the terminal: as a heat map of numbers if that fits, otherwise as a list of the largest changes."""

from __future__ import annotations

from rich.text import Text

from continual_petl.engine.ablation.result import AblatedSpan, Ablation, in_words
from continual_petl.errors import counted, printable
from continual_petl.report.whole_table import WholeTable

WIDEST = 12
"""Maximum number of layers for a heat map; for more, the spans are listed."""
MAX_LISTED = 20
_STRONG, _SLIGHT = -0.1, -0.01
"""Relative changes at or below the first value are shown in red, at or below the second in yellow, others in green."""


def headline(ablation: Ablation) -> str:
    """Describe the numbers in the table."""
    metric = f"{ablation.split} {ablation.metric}"
    if ablation.is_relative:
        return f"Change in {metric}, in % of the full bank's {ablation.full:.4f}, without layers FIRST to LAST"
    return f"{metric[0].upper()}{metric[1:]} without layers FIRST to LAST; the full bank's is {in_words(ablation.full)}"


def remarks(ablation: Ablation) -> list[str]:
    """Return the notes for the reader, one or two sentences each."""
    verb = "was" if ablation.num_examples == 1 else "were"
    rows = f"{counted(ablation.num_examples, 'row')} {verb} predicted again"
    lines = [f"{rows} for each span of the {counted(ablation.layers, 'layer')}."]
    if len(ablation.stacks) == 2:
        encoder = ablation.stacks[0]
        lines.append(f"Layers 0 to {encoder - 1} are the encoder's, {encoder} to {ablation.layers - 1} the decoder's.")
    if len(ablation.modified) < ablation.layers:
        have = ", ".join(map(str, ablation.modified))
        lines.append(f"The bank has modifications only in layers {have}; removing other layers changes nothing.")
    if ablation.stays:
        lines.append(f"Whichever layers are removed, the bank keeps {'; '.join(ablation.stays)}.")
    if not ablation.is_relative:
        full = in_words(ablation.full)
        lines.append(f"The full bank's score is {full}, so relative changes are not defined: scores are shown instead.")
    return [*lines, *ablation.notices]


def table(ablation: Ablation) -> WholeTable:
    """Return the heat map or, if there are many layers or only selected spans, a list of the largest changes."""
    return _heat_map(ablation) if _fits(ablation) else _listing(ablation)


def left_off(ablation: Ablation) -> list[str]:
    """Return a sentence if the table does not show every span."""
    total = len(ablation.cells)
    if total <= MAX_LISTED or _fits(ablation):
        return []
    return [
        f"These are the {MAX_LISTED} spans with the lowest scores, of {total:,}; --output and --html include all of them."
    ]


def _fits(ablation: Ablation) -> bool:
    return ablation.is_complete and ablation.layers <= WIDEST


def _heat_map(ablation: Ablation) -> WholeTable:
    heat_map = WholeTable(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    heat_map.add_column(Text("from\\to"))
    for last in range(ablation.layers):
        heat_map.add_column(str(last), justify="right")
    for first in range(ablation.layers):
        cells = [ablation[first, last] if last >= first else None for last in range(ablation.layers)]
        heat_map.add_row(str(first), *(Text("") if cell is None else _cell(ablation, cell) for cell in cells))
    return heat_map


def _listing(ablation: Ablation) -> WholeTable:
    listing = WholeTable(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for header in ("FIRST to LAST", printable(ablation.metric), "change in %"):
        listing.add_column(Text(header), justify="left" if header == "FIRST to LAST" else "right")
    shown = ablation.cells
    if len(shown) > MAX_LISTED:
        # Undefined scores are listed first, as the largest changes.
        worst = sorted(shown, key=lambda cell: float("-inf") if cell.score is None else cell.score)[:MAX_LISTED]
        shown = tuple(cell for cell in shown if cell in worst)
    for cell in shown:
        span = str(cell.first) if cell.first == cell.last else f"{cell.first} to {cell.last}"
        change = Text("n/a") if cell.relative is None else _cell(ablation, cell)
        listing.add_row(span, in_words(cell.score), change)
    return listing


def _cell(ablation: Ablation, cell: AblatedSpan) -> Text:
    if not ablation.is_relative:
        return Text("n/a" if cell.score is None else f"{cell.score:.3f}")
    if cell.relative is None:
        return Text("n/a")
    colour = "red" if cell.relative <= _STRONG else "yellow" if cell.relative <= _SLIGHT else "green"
    # A change of exactly zero is shown as 0, a change that rounds to zero as +0.0 or -0.0.
    percent = 100 * cell.relative
    # -100 without decimals is no wider than other cells: twelve columns have to fit into a terminal.
    return Text("0" if percent == 0 else f"{percent:+.1f}" if abs(percent) < 99.95 else f"{percent:+.0f}", style=colour)
