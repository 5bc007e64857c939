"""Tiny backbones, tokenizers and banks for the tests, made from configurations; nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    ElectraConfig,
    ElectraModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)

from continual_petl.backbones import find_anatomy
from continual_petl.banks.bank import Bank
from continual_petl.banks.presets import BankChoice

FAMILIES = ("bert", "roberta", "electra", "distilbert")
WORDS = [f"w{number}" for number in range(90)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


def make_model(family: str) -> PreTrainedModel:
    """Return a random model of two layers, width 16, with dropout configured as the real ones have it, in eval mode."""
    torch.manual_seed(1)
    size: dict[str, Any] = {"vocab_size": len(VOCABULARY), "max_position_embeddings": 64}
    common: dict[str, Any] = {
        **size,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    model: PreTrainedModel
    match family:
        case "bert":
            model = BertModel(BertConfig(**common))
        case "roberta":
            model = RobertaModel(RobertaConfig(**common, pad_token_id=1), add_pooling_layer=False)
        case "electra":
            model = ElectraModel(ElectraConfig(**common, embedding_size=8))
        case "distilbert":
            model = DistilBertModel(DistilBertConfig(**size, dim=16, n_layers=2, n_heads=2, hidden_dim=32))
        case _:
            raise AssertionError(family)
    # Biases and LayerNorms start as zeros and ones; random ones show more.
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    model.train(False)
    return model


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of a hundred words."""
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


IDS = torch.tensor([[2, 10, 11, 12, 3], [2, 20, 21, 3, 0]])
INPUTS = {"input_ids": IDS, "attention_mask": (IDS != 0).long()}


def make_bank(model: PreTrainedModel, choice: Any, seed: int = 0) -> Bank:
    spec = BankChoice.model_validate(choice).resolve()
    bank = Bank(spec, model, find_anatomy(model.config.model_type), 2, nn.Identity(), pooled=False)
    bank.initialise(model, seed)
    return bank.eval()
