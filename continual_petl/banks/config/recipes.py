"""The recipe of a bank: the learning rate and epochs that it is trained with when the stream leaves them open.

A bank is trained as the preset that it is, whatever options are given beside it; one that is like no preset gets the smallest
rate of its forms. This file never imports torch.
"""

from __future__ import annotations

from continual_petl.banks.config.presets import PRESETS, RECIPES, Recipe
from continual_petl.banks.config.spec import BankSpec


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


def _rate(recipe: Recipe) -> float:
    return recipe.learning_rate


def _method(bank: BankSpec) -> list[tuple[object, ...]]:
    """Return what the rates depend on: forms, places, compositions, and whether vectors are trained through a network."""
    return sorted(
        (m.form, m.modifies, m.insertion or "", m.composition, m.reparametrise != "none") for m in bank.modifications
    )


_METHODS = {name: _method(bank) for name, bank in PRESETS.items() if bank.modifications}
