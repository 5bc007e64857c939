"""Reports: results, growth and dashboards, read only from a run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from continual_petl._lazy import lazy_names

if TYPE_CHECKING:
    from continual_petl.report.figures.registry import run_figure as run_figure
    from continual_petl.report.figures.registry import task_figure as task_figure
    from continual_petl.report.figures.style import bar as bar
    from continual_petl.report.figures.style import drawing as drawing
    from continual_petl.report.figures.style import heatmap as heatmap
    from continual_petl.report.figures.style import scatter as scatter

__getattr__, __dir__, __all__ = lazy_names(__name__)
