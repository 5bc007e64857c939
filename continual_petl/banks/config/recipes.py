"""The recipe of a bank: its default learning rate and epochs.

A bank is trained like the preset that it matches, regardless of its options; a bank that matches no preset gets the
smallest learning rate of its forms. This file never imports torch.
"""

from __future__ import annotations

from continual_petl.banks.config.presets import FUSION, PRESETS, RECIPES, Recipe
from continual_petl.banks.config.spec import BankSpec, Modification
from continual_petl.errors import InputError, known_names


def recipe_of(bank: BankSpec, written: str | None = None) -> Recipe:
    """Return how a bank is trained by default.

    A bank is trained like the preset with the same forms at the same sites, regardless of sizes and options. A bank that
    matches no preset gets the smallest of its forms' learning rates, since a bank still learns at a rate that is too
    low, but learns nothing at one that is too high.

    Args:
        bank: its full specification.
        written: the preset named in the stream. It decides between `full` and `top_layers`, which differ only in their
            layers.

    Example:
        >>> from continual_petl.banks.config.choice import BankChoice
        >>> recipe_of(BankChoice(preset="prefix", hidden=512).resolve()) == RECIPES["prefix"]
        True
    """
    if bank.fuse:
        return RECIPES[FUSION]
    if not bank.modifications:
        return RECIPES["layernorm" if bank.layernorms == "own" else "probe"]
    fitting = [name for name, method in _METHODS.items() if method == _method(bank)]
    if "top_layers" in fitting and str(bank.layers).startswith("top-"):
        return RECIPES["top_layers"]
    if written in fitting:
        return RECIPES[written]
    if fitting:
        # Copies of layers whose range is not written as top-n are trained like `full`, which has a lower learning rate than
        # `top_layers`.
        return min((RECIPES[name] for name in fitting), key=_rate)
    return min(map(_recipe_like, bank.modifications), key=_rate)


def _recipe_like(modification: Modification) -> Recipe:
    preset = modification.config.like(modification)
    if preset not in RECIPES:
        raise InputError(
            f"form {modification.form!r}: its recipe is that of preset {preset!r}, which does not exist; allowed: "
            f"{known_names([*RECIPES])}"
        )
    return RECIPES[preset]


def _rate(recipe: Recipe) -> float:
    return recipe.learning_rate


def _method(bank: BankSpec) -> list[tuple[object, ...]]:
    """Return the properties that determine the recipe: forms, sites, compositions, and reparametrisation."""
    return sorted(
        (m.form, m.modifies, m.insertion or "", m.composition, m.reparametrise != "none") for m in bank.modifications
    )


_METHODS = {name: _method(bank) for name, bank in PRESETS.items() if bank.modifications}
