"""Adapters: a bottleneck with a non-linearity (Houlsby et al. 2019; He et al. 2022, Table 1)."""

from __future__ import annotations

from continual_petl.banks.config.forms.base import ADDED, Combination, FormConfig


class BottleneckConfig(FormConfig):
    """The form ``bottleneck``."""

    name = "bottleneck"
    rows = (
        Combination("bottleneck", ("attention", "ffn"), "sequential", (*ADDED, "multiply")),
        # Heads: the concatenated outputs of the heads, before the output projection.
        Combination("bottleneck", ("attention", "heads", "ffn"), "parallel", (*ADDED, "multiply")),
    )
    options = frozenset(
        {"bottleneck", "init", "init_scale", "dropout", "activation", "depth", "input_norm", "output_norm"}
    )
    preset = "houlsby"
    averages = True
    fuses = True

    def options_of(self, modifies: str, insertion: str | None, composition: str) -> frozenset[str]:
        """Return the options; only an adapter after the FFN can read a normalised input."""
        options = super().options_of(modifies, insertion, composition)
        return options | {"normalised_input"} if (modifies, insertion) == ("ffn", "sequential") else options
