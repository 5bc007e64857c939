"""IA3: learned vectors that multiply keys, values and the FFN's inner states (Liu et al. 2022, arXiv 2205.05638)."""

from __future__ import annotations

from continual_petl.banks.config.forms.base import Combination, FormConfig


class RescaleConfig(FormConfig):
    """The form ``rescale``."""

    name = "rescale"
    # Inner states: the input of the FFN's second projection.
    rows = (Combination("rescale", ("key", "value", "ffn_inner"), "sequential", ("multiply",)),)
    preset = "ia3"
    mergeable = True
