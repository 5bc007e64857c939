"""Write the ablations of several tasks to one HTML file that works offline."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from continual_petl.engine.ablation.result import Ablation, drawn
from continual_petl.engine.ablation.terminal import headline, remarks
from continual_petl.report.figures.style import plotly_js
from continual_petl.report.page.parts import Section, Shown
from continual_petl.report.page.render import page
from continual_petl.store.files.atomic import write_file


def write_ablations(path: Path, ablations: Sequence[Ablation], run: Path) -> None:
    """Write the page, in the report's style and with plotly included.

    Args:
        path: the file; it is replaced in one step.
        ablations: the ablations, each shown as one figure.
        run: the run folder; the page shows its name.

    Raises:
        StoreError: if it cannot be written; the old file is then unchanged.
    """
    parts = [_section(number, ablation) for number, ablation in enumerate(ablations)]
    title = "Ablation: banks without spans of layers"
    content = page(title, parts, time.time(), str(run), stamp="", live=False, plotly=plotly_js())
    write_file(path, content.encode())


def _section(number: int, ablation: Ablation) -> Section:
    shown = Shown(
        name=f"ablation-{number}",
        caption=headline(ablation),
        words="Modifications are removed from the first layer (row) to the last layer (column), without retraining "
        "(Houlsby et al. 2019, figure 6). In a framed cell a single layer is removed, at the top right all layers are.",
        figure=drawn(ablation),
    )
    return Section(
        id=f"task-{number}",
        title=ablation.task,
        lines=remarks(ablation),
        figures=[shown],
    )
