"""LoRA: a low-rank change to a projection (Hu et al. 2022, https://arxiv.org/abs/2106.09685)."""

from __future__ import annotations

from continual_petl.banks.config.forms.base import ADDED, PROJECTIONS, Combination, FormConfig


class LowRankConfig(FormConfig):
    """The form ``lowrank``."""

    name = "lowrank"
    rows = (Combination("lowrank", PROJECTIONS, "parallel", ADDED),)
    options = frozenset({"bottleneck", "init", "init_scale", "dropout"})
    preset = "lora"
    averages = True
    size = "rank"
    mergeable = True
