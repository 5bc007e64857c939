"""How a bank is trained when nobody says: a learning rate and a number of epochs for every preset.

The rates that do best lie far apart: that of a prompt is hundreds of times that of a full copy. A stream that leaves
`training.learning_rate` or `training.epochs` open gets what is listed here for the preset that its bank is, whatever
options are given beside it; a bank that is like no preset gets the smallest rate of its forms. This file never imports
torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from continual_petl.banks.config.presets import PRESETS, preset_of
from continual_petl.banks.config.spec import BankSpec


@dataclass(frozen=True)
class Recipe:
    """How a bank is trained when nobody says."""

    learning_rate: float
    """The highest of a schedule that warms up and falls to zero."""
    epochs: int


# Chosen on validation rows, see experiments/he2022/results/recipes.md, and a test holds them to it; or with their source.
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
    # As lora.
    "dora": Recipe(2e-3, 8),
    # The rate of Liu et al. 2022, section 4.2.
    "ia3": Recipe(3e-3, 8),
    "mam": Recipe(1e-3, 8),
    "mam_flat": Recipe(1e-3, 8),
    "layernorm": Recipe(1.5e-3, 8),
    "bitfit": Recipe(6e-3, 8),
    "diff_pruning": Recipe(1e-3, 8),
    "top_layers": Recipe(3e-4, 5),
    "full": Recipe(1.5e-4, 5),
    "probe": Recipe(2e-2, 8),
}


def recipe_of(bank: BankSpec, written: str | None = None) -> Recipe:
    """Return how a bank is trained when nobody says.

    A bank is trained as the preset with the same forms in the same places, whatever its sizes and options. One that is like
    no preset gets the smallest rate of its forms: a rate that is too high learns nothing, one that is too low still learns.

    Args:
        bank: in full.
        written: the preset under which the stream names it. It decides between `full` and `top_layers`, which differ in
            nothing but their layers.

    Example:
        >>> from continual_petl.banks.config.choice import BankChoice
        >>> recipe_of(BankChoice(preset="prefix", hidden=512).resolve()) == RECIPES["prefix"]
        True
    """
    if not bank.modifications:
        return RECIPES["layernorm" if bank.layernorms == "own" else "probe"]
    fitting = [name for name, method in _METHODS.items() if method == _method(bank)]
    if "top_layers" in fitting and str(bank.layers).startswith("top-"):
        return RECIPES["top_layers"]
    if written in fitting:
        return RECIPES[written]
    if fitting:
        # Of copies that are not counted from the top: full, whose rate is the smaller one.
        return min((RECIPES[name] for name in fitting), key=_rate)
    return min((RECIPES[modification.config.like(modification)] for modification in bank.modifications), key=_rate)


def first_recipe_of(bank: BankSpec) -> Recipe:
    """Return how a bank was trained by streams with ``defaults: 1``: any option but the size made it no preset's."""
    preset = preset_of(bank)
    # What is called mam now had no name then.
    if preset is not None and preset != "mam":
        return RECIPES[preset]
    if not bank.modifications:
        return RECIPES["layernorm" if bank.layernorms == "own" else "probe"]
    first = bank.modifications[0]
    return RECIPES[first.config.like_plain(first)]


def _rate(recipe: Recipe) -> float:
    return recipe.learning_rate


def _method(bank: BankSpec) -> list[tuple[object, ...]]:
    """Return what the rates depend on: forms, places, compositions, and whether vectors are trained through a network."""
    return sorted(
        (m.form, m.modifies, m.insertion or "", m.composition, m.reparametrise != "none") for m in bank.modifications
    )


_METHODS = {name: _method(bank) for name, bank in PRESETS.items() if bank.modifications}
