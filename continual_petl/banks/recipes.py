"""How a bank is trained when nobody says: a learning rate and a number of epochs for every preset.

The rates that do best lie far apart: that of a prompt is hundreds of times that of a full copy. A stream that leaves
`training.learning_rate` or `training.epochs` open gets what stands here for the preset that its bank is or, where it is
none of them, for the form of its first modification. This file never imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from continual_petl.banks.presets import preset_of
from continual_petl.banks.spec import BankSpec


@dataclass(frozen=True)
class Recipe:
    """How a bank is trained when nobody says."""

    learning_rate: float
    """The highest of a schedule that warms up and falls to zero."""
    epochs: int


# Chosen on validation rows, see experiments/he2022/results/recipes.md; a test holds them to it.
RECIPES: dict[str, Recipe] = {
    "houlsby": Recipe(1.5e-3, 8),
    "pfeiffer": Recipe(1.5e-3, 8),
    "parallel": Recipe(5e-3, 8),
    "parallel_attention": Recipe(1.5e-3, 8),
    "scaled_parallel": Recipe(2e-3, 8),
    "multihead_parallel": Recipe(5e-3, 8),
    "prefix": Recipe(1e-3, 8),
    "prefix_flat": Recipe(5e-3, 8),
    "prompt": Recipe(5e-2, 8),
    "p_tuning": Recipe(5e-3, 8),
    "lora": Recipe(2e-3, 8),
    "lora_ffn": Recipe(2e-3, 8),
    "mam": Recipe(1e-3, 8),
    "layernorm": Recipe(1.5e-3, 8),
    "bitfit": Recipe(6e-3, 8),
    "diff_pruning": Recipe(1e-3, 8),
    "top_layers": Recipe(3e-4, 5),
    "full": Recipe(1.5e-4, 5),
    "probe": Recipe(2e-2, 8),
}

_OF_FORMS = {
    "bottleneck": "houlsby",
    "lowrank": "lora",
    "attention": "prefix_flat",
    "prompt": "prompt",
    "sparse": "diff_pruning",
}


def recipe_of(bank: BankSpec) -> Recipe:
    """Return how a bank is trained when nobody says: as its preset, or as the preset that its first form is known from."""
    preset = preset_of(bank)
    if preset in RECIPES:
        return RECIPES[preset]
    if not bank.modifications:
        return RECIPES["layernorm" if bank.layernorms == "own" else "probe"]
    first = bank.modifications[0]
    if first.form == "additive":
        return RECIPES["bitfit" if first.modifies == "bias" else "full"]
    return RECIPES[_OF_FORMS[first.form]]
