"""Prompts: learned vectors in front of the token embeddings (Lester et al. 2021; through an encoder, Liu et al. 2021)."""

from __future__ import annotations

from continual_petl.banks.config.forms.base import (
    BankLike,
    Combination,
    FormConfig,
    ModificationLike,
    check_has_no_identity,
)


class PromptConfig(FormConfig):
    """The form ``prompt``."""

    name = "prompt"
    rows = (Combination("prompt", ("input",), None, ("prepend",)),)
    options = frozenset(
        {"bottleneck", "init", "init_scale", "dropout", "reparametrise", "hidden", "depth", "mlp_width"}
    )
    preset = "prompt"
    size = "length"
    init = "bert"
    outside = True

    def idle(self, reparametrise: str, init: str) -> frozenset[str]:
        """Return the options that have no effect, such as those of a network or LSTM that the prompt does not have."""
        idle = super().idle(reparametrise, init) | (set() if reparametrise == "lstm" else {"mlp_width"})
        return idle | {"depth"} if reparametrise == "none" else idle

    def check(self, modification: ModificationLike) -> None:
        """Raise `ValueError` for an init that a prompt cannot have."""
        check_has_no_identity(modification)

    def check_bank(self, spec: BankLike) -> None:
        """Raise `ValueError` for a second prompt."""
        if len([m for m in spec.modifications if m.config is self]) > 1:
            raise ValueError("a bank can have only one prompt: write one prompt with the total length")

    def like(self, modification: ModificationLike) -> str:
        """Return the preset whose recipe is used for this modification by default."""
        return "p_tuning" if modification.reparametrise != "none" else self.preset
