"""Merges a bank into a copy of its backbone, where possible: a plain `transformers` model for one task.

Low-rank changes are added to the weights of projections (Hu et al. 2022, section 4.1), learned factors are multiplied into
them, and a bank's own parameters and sparse differences are already weights. Everything else acts between modules or inside
attention and cannot be merged.
"""

from __future__ import annotations

import copy

import torch
from transformers import PreTrainedModel

from continual_petl.backbones.quantised import is_quantised, refuse_parts
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.legal import MERGEABLE
from continual_petl.banks.forms import form_of, in_order
from continual_petl.errors import InputError


@torch.no_grad()
def merged(model: PreTrainedModel, bank: Bank) -> PreTrainedModel:
    """Return a copy of the backbone that gives the same outputs as the backbone with the bank.

    The outputs differ only by rounding, since sums are computed in another order (tested: 1e-5 in float32 on tiny models,
    1e-12 in float64). The copy is as large as the backbone; certificates cover the bank, not the copy.

    Args:
        model: the backbone; not changed.
        bank: built for this backbone.

    Raises:
        InputError: if a form of the bank cannot be merged.
    """
    if stuck := bank.spec.not_mergeable:
        raise InputError(
            f"bank: {', '.join(stuck)} cannot be merged into weights; {', '.join(MERGEABLE)} can. Use the bank itself "
            "instead, as a Predictor does."
        )
    if any(map(is_quantised, model.parameters())):
        raise refuse_parts("bank: it cannot be merged", "a sum with the bank's change would be rounded to codes again")
    whole = copy.deepcopy(model)
    targets, own = dict(whole.named_parameters()), bank.substitutes(model)
    for name, tensor in own.items():
        targets[name].copy_(tensor)
    base = dict(model.named_parameters(remove_duplicate=False)) | own
    for placement in in_order(bank.placements()):
        form_of(placement.modification).merge(whole, bank.sites, placement, base)
    return whole
