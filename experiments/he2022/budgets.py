"""Bank sizes from parameter budgets, based on the library's parameter counts for a model without weights.

Heads are left out, as in the papers. A budget is a share of the whole backbone.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn
from transformers import BertConfig, BertModel, PreTrainedModel

from continual_petl.backbones import find_anatomy
from continual_petl.backbones.sites import Sites
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.choice import BankChoice
from experiments.studies.random_seq2seq import make_model

Model = Literal["minilm", "bart-small"]
Spec = dict[str, Any] | str
NEAR = 0.10
"""Maximum distance of a bank from its budget, as a share of the budget."""


@functools.cache
def model_of(name: Model) -> PreTrainedModel:
    """Return a backbone of the studies, without weights."""
    with torch.device("meta"):
        if name == "minilm":
            sizes = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}
            return BertModel(BertConfig(**sizes))  # type: ignore[arg-type]
        return make_model()


@functools.cache
def whole(name: Model) -> int:
    """Return the number of parameters of a backbone, counting shared ones once."""
    return sum(parameter.numel() for parameter in model_of(name).parameters())


def count(name: Model, bank: Spec) -> int:
    """Return the number of stored parameters of a bank, excluding its head."""
    return _count(name, json.dumps(bank))


@functools.cache
def _count(name: Model, bank: str) -> int:
    model = model_of(name)
    sites = Sites(find_anatomy(model.config.model_type), model)
    reads: Literal["logits", "states"] = "logits" if name == "bart-small" else "states"
    with torch.device("meta"):
        parts = Bank(
            BankChoice.model_validate(json.loads(bank)).resolve(), model, sites, nn.Identity(), reads=reads, folded=True
        ).count()
    return parts["modifications"] + parts["own"]


def sized(name: Model, of_size: Callable[[int], Spec], share: float) -> Spec | None:
    """Return the bank whose parameter count is closest to a share of the backbone; None if none is within `NEAR`.

    Args:
        name: name of the backbone.
        of_size: returns the bank of a given size, 1 or more; its parameter count grows with the size.
        share: share of the backbone's parameters, between 0 and 1.
    """
    budget = share * whole(name)

    def away(size: int) -> float:
        return abs(count(name, of_size(size)) - budget)

    first = count(name, of_size(1))
    # Nearly all counts grow linearly; checking the neighbours compensates for rounding inside a bank.
    size = max(1, 1 + round((budget - first) / (count(name, of_size(2)) - first)))
    while nearer := [near for near in (size - 1, size + 1) if near > 0 and away(near) < away(size)]:
        size = nearer[0]
    return of_size(size) if away(size) <= NEAR * budget else None
