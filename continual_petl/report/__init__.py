"""Reports: results, growth and dashboards, read only from a run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from continual_petl._lazy import lazy_names

if TYPE_CHECKING:
    from continual_petl.report.growth import GrowthRow as GrowthRow
    from continual_petl.report.results import Results as Results

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "GrowthRow": "continual_petl.report.growth",
        "Results": "continual_petl.report.results",
    },
)
