"""Figures of studies draw all lines, however many there are."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments.studies.plots import MARKS, against_parameters, over_sigma
from experiments.studies.statistics import Mean

NAMES = [f"line {number}" for number in range(len(MARKS) + 2)]
SCORE = Mean(80.0, 0.5, 3)


def _named(figure: Figure) -> list[str]:
    return [label for axes in figure.axes for label in axes.get_legend_handles_labels()[1]]


def test_more_lines_than_markers_are_all_drawn() -> None:
    assert (
        _named(against_parameters({name: [("a", 10.0, SCORE), ("b", 20.0, SCORE)] for name in NAMES}, "score")) == NAMES
    )
    assert _named(over_sigma({name: [(0.1, SCORE), (1.0, SCORE)] for name in NAMES})) == NAMES
