"""Learned keys and values in attention heads: prefix tuning (Li and Liang 2021), the multi-head parallel adapter."""

from __future__ import annotations

from continual_petl.banks.config.forms.base import (
    ADDED,
    Combination,
    FormConfig,
    ModificationLike,
    check_has_no_identity,
)


class AttentionConfig(FormConfig):
    """The form ``attention``."""

    name = "attention"
    # Gated is prefix tuning; the other compositions are the multi-head parallel adapter.
    rows = (Combination("attention", ("heads",), "parallel", ("gated", *ADDED)),)
    options = frozenset({"bottleneck", "init", "init_scale", "dropout", "reparametrise", "hidden"})
    preset = "prefix_flat"
    size = "length"
    init = "bert"
    in_heads = True

    def options_of(self, modifies: str, insertion: str | None, composition: str) -> frozenset[str]:
        """Return the options: a prefix (gated) has an implementation, a multi-head parallel adapter an activation."""
        own = "implementation" if composition == "gated" else "activation"
        return super().options_of(modifies, insertion, composition) | {own}

    def idle(self, reparametrise: str, init: str) -> frozenset[str]:
        """Return the options that have no effect, such as init with an MLP, which has torch's default initialisation."""
        idle = super().idle(reparametrise, init)
        return idle if reparametrise == "none" else idle | {"init", "init_scale"}

    def check(self, modification: ModificationLike) -> None:
        """Raise `ValueError` for an LSTM, or an init that a prefix cannot have."""
        if modification.reparametrise == "lstm":
            raise ValueError("reparametrise lstm is for prompts (P-tuning): a prefix takes none or mlp")
        check_has_no_identity(modification)

    def like(self, modification: ModificationLike) -> str:
        """Return the preset whose recipe is used for this modification by default."""
        return "prefix" if modification.reparametrise != "none" else self.preset
