"""A table for terminals of any width that never breaks a word.

rich shrinks the columns of a table that is too wide without regard to their words. Here, no column becomes narrower than
its longest word; if the table is still too wide, each row becomes a paragraph.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text
from typing_extensions import override

_ANY = 100_000
"""A width at which nothing is shrunk."""


class WholeTable(Table):
    """A table whose words are never broken, unless one is longer than the terminal is wide.

    Example:
        >>> table = WholeTable("task", "kind", "rows", box=None, pad_edge=False)
        >>> table.add_row("support_topics", "token-classification", "12")
        >>> Console(width=30).print(table)  # doctest: +NORMALIZE_WHITESPACE
        support_topics
          kind: token-classification;
          rows: 12
    """

    @override
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, or its rows as paragraphs if it is too wide."""
        widths = self._whole_widths(console, options)
        if widths is None:
            yield from self._paragraphs(console)
            return
        before = [column.width for column in self.columns]
        for column, width in zip(self.columns, widths, strict=True):
            column.width = width
        try:
            yield from super().__rich_console__(console, options)
        finally:
            for column, width_before in zip(self.columns, before, strict=True):
                column.width = width_before

    def _whole_widths(self, console: Console, options: ConsoleOptions) -> list[int] | None:
        """Return the width of each column; None if the longest words of all columns do not fit into one line."""
        wide = options.update(width=_ANY)
        measured = [_measured(console, wide, column) for column in self.columns]
        around = self.__rich_measure__(console, wide).maximum - sum(width.maximum for width in measured)
        widths = [width.minimum for width in measured]
        left = options.max_width - around - sum(widths)
        if left < 0:
            return None
        while left and (short := [n for n, width in enumerate(measured) if widths[n] < width.maximum]):
            widths[min(short, key=widths.__getitem__)] += 1  # short columns become complete first
            left -= 1
        return widths

    def _paragraphs(self, console: Console) -> Iterator[RenderableType]:
        """Yield the title and a paragraph for each row: its first cell, and below it the others, each after its header."""
        heads = [_text(console, column.header).plain.replace("\n", " ").strip() for column in self.columns]
        if self.title is not None:
            yield _text(console, self.title)
        for first, *others in zip(*(column.cells for column in self.columns), strict=True):
            named = [(head, _text(console, cell)) for head, cell in zip(heads[1:], others, strict=True)]
            said = [Text.assemble(f"{head}: " if head else "", text) for head, text in named if text.plain.strip()]
            title = _text(console, first)
            title.stylize("bold")
            yield title
            if said:
                yield Padding(Text("; ").join(said), (0, 0, 0, 2))


def _measured(console: Console, options: ConsoleOptions, column: Column) -> Measurement:
    """Return the length of the longest word and of the longest line in a column."""
    cells = [Measurement.get(console, options, text) for text in (column.header, *column.cells)]
    return Measurement(max(cell.minimum for cell in cells), max(cell.maximum for cell in cells))


def _text(console: Console, shown: RenderableType) -> Text:
    return shown.copy() if isinstance(shown, Text) else console.render_str(str(shown))
