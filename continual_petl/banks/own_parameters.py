"""Finds the backbone parameters that a bank has its own versions of: copies (LayerNorms, biases, weights) or differences."""

from __future__ import annotations

from typing import Literal

from torch import nn

from continual_petl.backbones.sites import Layer, Sites
from continual_petl.banks.config.spec import BankSpec
from continual_petl.errors import InputError

Reads = Literal["states", "pooler", "logits"]
"""The backbone output that a task uses: token states, the pooler, or the language-modelling head."""


def own_names(spec: BankSpec, model: nn.Module, sites: Sites, layers: list[Layer], reads: Reads) -> list[str]:
    """Return the names of the backbone parameters that the bank copies or adds a difference to, in the backbone's order.

    Raises:
        InputError: if the bank trains biases, but the layers have none.
    """
    kinds = {m.modifies for m in spec.modifications if m.config.own_parameters}
    norms = {path for layer in layers for path in sites.norms(layer)} if spec.layernorms == "own" else set()
    numbers = {layer.number for layer in layers}

    def is_own(name: str) -> bool:
        if name.rpartition(".")[0] in norms:
            return True
        if name.startswith("lm_head.") and reads != "logits":
            return False
        owner = sites.owner(name)
        if owner is None:
            # The pooler is not part of the encoder (Houlsby et al. freeze it); a full copy includes it if the task uses it.
            return "weights" in kinds and reads == "pooler" and len(layers) == sites.num_layers
        if owner not in numbers:
            return False
        return "weights" in kinds or ("bias" in kinds and name.endswith("bias"))

    names = [name for name, _ in model.named_parameters() if is_own(name)]
    if "bias" in kinds and not any(name.endswith("bias") for name in names):
        raise InputError(
            f"bank: bitfit trains biases, but family {sites.anatomy.family!r} has none in this layer range: choose another "
            "preset, such as layernorm."
        )
    return names
