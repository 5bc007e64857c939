"""Score against share of parameters, as in Figures 2 and 4 of He et al. 2022."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from experiments.he2022.rows import Row, mean_score
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale

FULL = "full fine-tuning"


def score_by_share(rows: Sequence[Row], scale: Scale, book: Book) -> Figure:
    """Plot the mean test score against the share of the backbone's parameters, with a line for each method.

    Full fine-tuning is the dashed horizontal line; a bank with only a head, which cannot be placed on a logarithmic axis, is
    the dotted line.
    """
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xscale("log")
    axes.set_xlabel("parameters of a task, % of the backbone")
    axes.set_ylabel("mean test score")
    for name in dict.fromkeys(row.name for row in rows):
        found = [(row.share, mean_score([row], scale, book)) for row in rows if row.name == name]
        points = [(100 * share, mean) for share, mean in found if mean is not None]
        if not points:
            continue
        if name == FULL or points[0][0] == 0:
            axes.axhline(points[0][1].value, color="grey", linestyle="--" if name == FULL else ":", label=name)
            continue
        errors = [mean.error or 0.0 for _, mean in points]
        axes.errorbar(
            [share for share, _ in points], [mean.value for _, mean in points], errors,
            marker="o", markersize=4, capsize=2, label=name,
        )  # fmt: skip
    axes.xaxis.set_major_formatter("{x:g}")
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside right upper", fontsize="small")
    return figure
