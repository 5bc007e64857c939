"""A bank written into a copy of its backbone, where that is possible: a plain `transformers` model for one task.

Low-rank changes are sums on the weights of projections (Hu et al. 2022, section 4.1), own parameters and sparse differences
are weights already. Everything else acts between modules or inside attention and cannot be merged.
"""

from __future__ import annotations

import copy

import torch
from transformers import PreTrainedModel

from continual_petl.banks.bank import Bank
from continual_petl.banks.build import projections
from continual_petl.banks.forms import LowRank
from continual_petl.errors import InputError

MERGEABLE = ("lowrank", "additive", "sparse")
"""Forms that can be merged."""


@torch.no_grad()
def merged(model: PreTrainedModel, bank: Bank) -> PreTrainedModel:
    """Return a copy of the backbone that answers without the bank as the backbone does with it.

    The answers differ by rounding only: sums are taken in another order (tested: 1e-5 in float32 on tiny models, 1e-12 in
    float64). The copy is as large as the backbone; certificates are about the bank, not about the copy.

    Args:
        model: the backbone; stays as it is.
        bank: built for it.

    Raises:
        InputError: if a form of the bank cannot be merged.
    """
    stuck = sorted({m.form for m in bank.spec.modifications if m.form not in MERGEABLE})
    if stuck:
        raise InputError(
            f"bank: {', '.join(stuck)} cannot be merged into weights; {', '.join(MERGEABLE)} can. Answer through the bank "
            "instead, as a Predictor does."
        )
    whole = copy.deepcopy(model)
    targets = dict(whole.named_parameters())
    for name, tensor in bank.substitutes(model).items():
        targets[name].copy_(tensor)
    for placement in bank.placements():
        form, layer = placement.form, placement.layer
        assert isinstance(form, LowRank)
        projection = projections(bank.sites, layer, placement.modification.modifies)[placement.name]
        module = whole.get_submodule(layer.full(projection.path))
        weight = module.get_parameter("weight")
        columns = bank.sites.columns(layer, projection)
        # GPT-2's Conv1D keeps its weight with inputs first.
        rows = weight.t() if hasattr(module, "nf") else weight
        rows[columns] += form.weight().to(rows.dtype)
    return whole
