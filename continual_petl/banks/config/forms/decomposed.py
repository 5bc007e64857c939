"""DoRA: a projection's weight as magnitude and direction, with a low-rank change of the direction (Liu et al. 2024)."""

from __future__ import annotations

from continual_petl.banks.config.forms.base import PROJECTIONS, Combination
from continual_petl.banks.config.forms.lowrank import LowRankConfig


class DecomposedConfig(LowRankConfig):
    """The form ``decomposed``."""

    name = "decomposed"
    rows = (Combination("decomposed", PROJECTIONS, "parallel", ("add", "scaled")),)
    preset = "dora"
    averages = False
