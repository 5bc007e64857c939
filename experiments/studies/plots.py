"""Figures of the studies, in one style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.studies.statistics import Mean

MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")


def new_figure(x: str, y: str) -> tuple[Figure, Axes]:
    """Return an empty figure with labelled axes."""
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)
    return figure, axes


def against_parameters(lines: Mapping[str, Sequence[tuple[str, float, Mean]]], y: str) -> Figure:
    """Plot scores against trained parameters, with standard errors.

    Args:
        lines: the points of each line, as (name, parameters, score).
        y: label of the score axis.
    """
    figure, axes = new_figure("trained parameters of a task, without its head", y)
    axes.set_xscale("log")
    for mark, (name, points) in zip(cycle(MARKS), lines.items(), strict=False):
        if points:
            _line(axes, [count for _, count, _ in points], [mean for _, _, mean in points], name, mark)
    _name_lines(axes)
    return figure


def over_sigma(lines: Mapping[str, Sequence[tuple[float, Mean]]]) -> Figure:
    """Plot scores against the scale of the initialisation."""
    figure, axes = new_figure("sigma of the initialisation", "validation score")
    axes.set_xscale("log")
    for mark, (name, points) in zip(cycle(MARKS), lines.items(), strict=False):
        if points:
            _line(axes, [sigma for sigma, _ in points], [mean for _, mean in points], name, mark)
    _name_lines(axes)
    return figure


def _name_lines(axes: Axes) -> None:
    """Add a legend, unless the figure is empty, since matplotlib would warn."""
    if axes.get_legend_handles_labels()[1]:
        axes.legend()


def _line(axes: Axes, x: Sequence[float], means: Sequence[Mean], name: str, mark: str) -> None:
    errors = [mean.error or 0.0 for mean in means]
    axes.errorbar(x, [mean.value for mean in means], yerr=errors, label=name, marker=mark, capsize=3)
