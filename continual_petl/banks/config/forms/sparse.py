"""Diff-pruning: a difference added to every weight, most of it exactly zero (Guo et al. 2021)."""

from __future__ import annotations

from continual_petl.banks.config.forms.base import BankLike, Combination, FormConfig, ModificationLike


class SparseConfig(FormConfig):
    """The form ``sparse``."""

    name = "sparse"
    rows = (Combination("sparse", ("weights",), None, ("add",)),)
    options = frozenset({"density", "penalty"})
    preset = "diff_pruning"
    mergeable = True
    own_parameters = True

    def check_bank(self, spec: BankLike) -> None:
        """Raise `ValueError` if another part of the bank also has its own versions of backbone parameters."""
        if len([m for m in spec.modifications if m.config.own_parameters]) > 1 or spec.layernorms == "own":
            raise ValueError(
                "a sparse difference already covers every parameter of the layer range: leave out other sparse or additive "
                "modifications, and write layernorms: frozen"
            )

    def folds(self, modification: ModificationLike) -> bool:
        """Return True: only the largest entries are stored."""
        return True

    def trained_through(self, modification: ModificationLike) -> str:
        """Describe the part that is folded away after training."""
        return "a mask over all weights"
