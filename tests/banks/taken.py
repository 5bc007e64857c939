"""Which presets each family supports, and the error messages for the others."""

from __future__ import annotations

import itertools

from continual_petl.banks.config.presets import PRESETS
from tests.tiny import FAMILIES

PRE_NORM = ("mbart", "modernbert", "t5", "mt5", "gpt2", "llama", "qwen2", "qwen3", "vit")
WITHOUT_REGISTRY = ("mpnet", "deberta", "deberta-v2")
WITHOUT_BIASES = ("modernbert", "t5", "mt5", "llama", "qwen3")
INSIDE_HEADS = ("prefix", "prefix_flat", "multihead_parallel", "mam", "mam_flat")


def refusal(family: str, preset: str) -> str | None:
    """Return a pattern that the error matches, or None if the family supports the preset."""
    if preset == "pfeiffer" and family in PRE_NORM:
        return "normalises before its sub-layers"
    if preset in INSIDE_HEADS and family in WITHOUT_REGISTRY:
        return "not through the attention registry"
    if preset == "bitfit" and family in WITHOUT_BIASES:
        return "trains biases, but"
    return None


TAKEN = [pair for pair in itertools.product(FAMILIES, PRESETS) if refusal(*pair) is None]
REFUSED = [pair for pair in itertools.product(FAMILIES, PRESETS) if refusal(*pair) is not None]
