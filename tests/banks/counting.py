"""The papers' models on the meta device (no weights, no memory), and the parameter counts of banks on them.

Percentages are computed with integers, so that rounding errors cannot change a digit.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import torch
from torch import nn
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertModel,
    MBartConfig,
    MBartForConditionalGeneration,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
)

from continual_petl.backbones import find_anatomy
from continual_petl.backbones.sites import Sites
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.choice import BankChoice

Name = Literal["bert-base", "bert-large", "roberta-base", "bart-large", "mbart-large"]


@functools.cache
def published(name: Name) -> PreTrainedModel:
    """Return a model with the published sizes, but without values."""
    with torch.device("meta"):
        match name:
            case "bert-base":
                return BertModel(BertConfig())
            case "bert-large":
                large = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
                return BertModel(BertConfig(**large, intermediate_size=4096))  # type: ignore[arg-type]
            case "roberta-base":
                config = RobertaConfig(vocab_size=50_265, max_position_embeddings=514, type_vocab_size=1)
                return RobertaModel(config, add_pooling_layer=False)
            case "bart-large":
                return BartForConditionalGeneration(BartConfig())
        return MBartForConditionalGeneration(MBartConfig(vocab_size=250_027))


@functools.cache
def _sites(name: Name) -> Sites:
    model = published(name)
    return Sites(find_anatomy(model.config.model_type), model)


def total(module: nn.Module) -> int:
    """Return the number of parameters; shared ones count once."""
    return sum(parameter.numel() for parameter in module.parameters())


def parts(name: Name, choice: Any, *, trained: bool = False) -> tuple[int, int]:
    """Return the number of parameters in a bank's modifications, and in its own versions of backbone parameters.

    Args:
        name: the model's name.
        choice: the bank, as in a stream file.
        trained: whether to count the parameters used in training instead of those that are stored.
    """
    spec = BankChoice.model_validate(choice).resolve()
    with torch.device("meta"):
        counted = Bank(spec, published(name), _sites(name), nn.Identity(), reads="pooler", folded=not trained).count()
    return counted["modifications"], counted["own"]


def count(name: Name, choice: Any, *, trained: bool = False) -> int:
    """Return the number of parameters of a bank without its head."""
    return sum(parts(name, choice, trained=trained))


def floored(count: int, whole: int, digits: int = 1) -> str:
    """Return a percentage, truncated after the given number of digits as in He et al. 2022."""
    scaled = count * 100 * 10**digits // whole
    return f"{scaled // 10**digits}.{scaled % 10**digits:0{digits}d}"


def rounded(count: int, whole: int, digits: int = 1) -> str:
    """Return a percentage, rounded to the given number of digits."""
    scaled = (2 * count * 100 * 10**digits + whole) // (2 * whole)
    return f"{scaled // 10**digits}.{scaled % 10**digits:0{digits}d}"


def times(count: int, whole: int, digits: int = 1) -> str:
    """Return a count as a multiple of ``whole``, rounded to the given number of digits."""
    return rounded(count, 100 * whole, digits)
