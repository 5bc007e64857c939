"""Copies of backbone parameters: all biases (Ben-Zaken et al. 2022), or all weights of some layers (fine-tuning)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from continual_petl.banks.config.base import Combination, FormConfig

if TYPE_CHECKING:
    from continual_petl.banks.spec import Modification


class AdditiveConfig(FormConfig):
    """The form ``additive``."""

    name = "additive"
    rows = (Combination("additive", ("bias", "weights"), None, ("add",)),)
    preset = "full"
    mergeable = True
    own_parameters = True
    copies = True

    def like_plain(self, modification: Modification) -> str:
        """Return the preset that it is trained as."""
        return "bitfit" if modification.modifies == "bias" else self.preset
