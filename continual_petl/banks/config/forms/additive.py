"""Copies of backbone parameters: all biases (Ben-Zaken et al. 2022), or all weights of some layers (fine-tuning)."""

from __future__ import annotations

from continual_petl.banks.config.forms.base import Combination, FormConfig, ModificationLike


class AdditiveConfig(FormConfig):
    """The form ``additive``."""

    name = "additive"
    rows = (Combination("additive", ("bias", "weights"), None, ("add",)),)
    preset = "full"
    mergeable = True
    own_parameters = True
    copies = True

    def like_plain(self, modification: ModificationLike) -> str:
        """Return the preset whose recipe is used for this modification by default."""
        return "bitfit" if modification.modifies == "bias" else self.preset
