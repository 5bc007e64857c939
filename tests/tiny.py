"""Tiny backbones, tokenizers and banks for the tests, made from configurations; nothing is downloaded."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from continual_petl.backbones import find_anatomy
from continual_petl.backbones.sites import Sites
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.choice import BankChoice
from tests.small import small

WORDS = [f"w{number}" for number in range(90)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]

# Two layers (or two in each stack), width 16, two heads, FFN width 32; special token ids as in VOCABULARY.
_TEXT: dict[str, Any] = {"vocab_size": len(VOCABULARY), "max_position_embeddings": 64}
_SIZE: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
_SPECIAL: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
_BART: dict[str, Any] = {
    **_TEXT,
    **_SPECIAL,
    **{f"{stack}_{key}": n for stack in ("encoder", "decoder") for key, n in [("layers", 2), ("attention_heads", 2)]},
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "d_model": 16,
    "decoder_start_token_id": 3,
    "forced_eos_token_id": 3,
}
_T5: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": 2,
    "pad_token_id": 0,
    "eos_token_id": 3,
    "decoder_start_token_id": 0,
}
# Grouped-query attention, as in Llama 3 and Qwen: two query heads share one key and value head.
_LLAMA: dict[str, Any] = {**_TEXT, **_SIZE, **_SPECIAL, "num_key_value_heads": 1, "head_dim": 8}
# As in the published models: no absolute position embeddings, but both kinds of relative attention.
_DEBERTA: dict[str, Any] = {
    **_TEXT,
    **_SIZE,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}
_DEBERTA_V2: dict[str, Any] = {
    **_DEBERTA,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
}

_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", {**_TEXT, **_SIZE}),
    "roberta": ("RobertaModel", {**_TEXT, **_SIZE, "pad_token_id": 1}),
    "electra": ("ElectraModel", {**_TEXT, **_SIZE, "embedding_size": 8}),
    "distilbert": ("DistilBertModel", {**_TEXT, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}),
    "xlm-roberta": ("XLMRobertaModel", {**_TEXT, **_SIZE, "pad_token_id": 1}),
    "mpnet": ("MPNetModel", {**_TEXT, **_SIZE, "pad_token_id": 1}),
    "deberta": ("DebertaModel", _DEBERTA),
    "deberta-v2": ("DebertaV2Model", _DEBERTA_V2),
    # In the second layer, a token attends to two neighbours on each side.
    "modernbert": (
        "ModernBertModel",
        {**_TEXT, **_SIZE, **_SPECIAL, "cls_token_id": 2, "sep_token_id": 3, "local_attention": 4},
    ),
    "bart": ("BartForConditionalGeneration", _BART),
    "mbart": ("MBartForConditionalGeneration", _BART),
    "t5": ("T5ForConditionalGeneration", _T5),
    "mt5": ("MT5ForConditionalGeneration", {**_T5, "feed_forward_proj": "gated-gelu"}),
    "gpt2": (
        "GPT2LMHeadModel",
        {**_SPECIAL, "vocab_size": len(VOCABULARY), "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}
        | {"n_inner": 32, "pad_token_id": None},
    ),
    "llama": ("LlamaForCausalLM", _LLAMA),
    "qwen2": ("Qwen2ForCausalLM", {**_LLAMA, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", _LLAMA),
    "vit": ("ViTModel", {**_SIZE, "image_size": 8, "patch_size": 4, "hidden_dropout_prob": 0.1}),
}
FAMILIES = tuple(_MODELS)
ENCODER_DECODERS = ("bart", "mbart", "t5", "mt5")
DECODERS = ("gpt2", "llama", "qwen2", "qwen3")
TEXT_FAMILIES = tuple(family for family in FAMILIES if family != "vit")
_WITHOUT_POOLER = {"roberta", "xlm-roberta", "mpnet", "vit"}


def make_model(family: str) -> PreTrainedModel:
    """Return a random model of two layers and width 16 in eval mode, with the family's usual dropout configured.

    Encoder-decoders and decoders come with their language-modelling head. The state of the global random number
    generator does not change, so that a test draws the same numbers whether or not the model was already made.
    """
    return copy.deepcopy(_made(family))


@functools.cache
@torch.random.fork_rng(devices=[])
def _made(family: str) -> PreTrainedModel:
    """Return the model that `make_model` copies: a copy takes half as long as a new model."""
    torch.manual_seed(1)
    name, settings = _MODELS[family]
    kind = getattr(transformers, name)
    arguments = {"add_pooling_layer": False} if family in _WITHOUT_POOLER else {}
    model: PreTrainedModel = kind(kind.config_class(**settings), **arguments)
    if family == "mt5":
        # As in the published mT5 and T5 1.1, the head is untied, which only the weights file shows, not the configuration.
        head: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        head.weight = nn.Parameter(torch.randn(len(VOCABULARY), 16))
    # Biases and LayerNorms start as zeros and ones, which would hide mistakes; make them random.
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    model.train(False)
    return model


def make_tokenizer(family: str = "bert") -> PreTrainedTokenizerFast:
    """Return a tokenizer for VOCABULARY that adds the same special tokens as the family's tokenizers.

    As in reality, GPT-2's tokenizer has no padding token. The tokenizers of all decoders pad on the left.
    """
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    single, pair = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    if family in {*ENCODER_DECODERS, *DECODERS}:
        names = {"bos_token": "[CLS]", "eos_token": "[SEP]"}
        if family in {"t5", "mt5"}:
            single, pair = "$A [SEP]", "$A [SEP] $B [SEP]"
        elif family == "llama":
            single, pair = "[CLS] $A", "[CLS] $A [CLS] $B"
        elif family in DECODERS:
            single, pair = "$A", "$A $B"
    if family != "gpt2":
        names["pad_token"] = "[PAD]"
    if family in DECODERS:
        names["padding_side"] = "left"
    tokenizer.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    if family not in {"bert", "electra"}:
        inputs.remove("token_type_ids")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", model_input_names=inputs, **names)  # type: ignore[no-untyped-call]


PREPROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 8, "width": 8},
    "resample": 2,
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
"""The image processor's configuration, which is saved next to the weights of a ViT."""

IDS = torch.tensor([[2, 10, 11, 12, 3], [2, 20, 21, 3, 0]])
INPUTS = {"input_ids": IDS, "attention_mask": (IDS != 0).long()}


def make_inputs(family: str) -> dict[str, Tensor]:
    """Return two rows of inputs for the family's model, with decoder tokens for encoder-decoders."""
    if family == "vit":
        return {"pixel_values": torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(3))}
    if family in ENCODER_DECODERS:
        return {**INPUTS, "decoder_input_ids": torch.tensor([[0, 30, 31, 32], [0, 40, 41, 3]])}
    return dict(INPUTS)


def make_bank(model: PreTrainedModel, choice: Any, seed: int = 0) -> Bank:
    """Return a fresh bank; a preset given by its name gets a size that fits the tiny models."""
    spec = BankChoice.model_validate(small(choice) if isinstance(choice, str) else choice).resolve()
    bank = Bank(spec, model, Sites(find_anatomy(model.config.model_type), model), nn.Identity())
    bank.initialise(model, seed)
    return bank.eval()
