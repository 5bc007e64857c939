"""Encoder-decoders: BART, its pre-norm sibling mBART, T5 and mT5."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from continual_petl.backbones.anatomy import Anatomy, Attention, FeedForward, Projection, PromptSite, Stack
from continual_petl.backbones.families.parts import separate


def _bart_attention(name: Literal["self", "cross"], module: str) -> Attention:
    return separate(
        module, ("q_proj", "k_proj", "v_proj"), f"{module}.out_proj", norm=f"{module}_layer_norm", name=name
    )


# BART applies dropout as a function, so a sub-layer's result is the output of its last projection.
_BART_ENCODER = Stack(
    root="encoder",
    layer="encoder.layers.{}",
    num_layers_key="encoder_layers",
    attentions=(_bart_attention("self", "self_attn"),),
    ffn=FeedForward(into=(Projection(path="fc1"),), out="fc2", result="fc2", norm="final_layer_norm"),
    embedding_norm="encoder.layernorm_embedding",
)
_BART_DECODER = replace(
    _BART_ENCODER,
    root="decoder",
    layer="decoder.layers.{}",
    num_layers_key="decoder_layers",
    attentions=(_bart_attention("self", "self_attn"), _bart_attention("cross", "encoder_attn")),
    embedding_norm="decoder.layernorm_embedding",
)
_BART = Anatomy(
    family="bart",
    model_types=("bart",),
    stacks=(_BART_ENCODER, _BART_DECODER),
    hidden_size_key="d_model",
    pooling="last",
    prompt=PromptSite(stack="encoder", positions="encoder.embed_positions"),
    output_head="seq2seq",
)


def _t5_attention(name: Literal["self", "cross"], number: int, module: str) -> Attention:
    layer = f"layer.{number}"
    return separate(
        f"{layer}.{module}",
        ("q", "k", "v"),
        f"{layer}.{module}.o",
        result=f"{layer}.dropout",
        norm=f"{layer}.layer_norm",
        name=name,
    )


def _t5_ffn(number: int) -> FeedForward:
    layer = f"layer.{number}"
    into = tuple(Projection(path=f"{layer}.DenseReluDense.{name}") for name in ("wi", "wi_0", "wi_1"))
    return FeedForward(
        into=into, out=f"{layer}.DenseReluDense.wo", result=f"{layer}.dropout", norm=f"{layer}.layer_norm"
    )


_T5_ENCODER = Stack(
    root="encoder",
    layer="encoder.block.{}",
    num_layers_key="num_layers",
    attentions=(_t5_attention("self", 0, "SelfAttention"),),
    ffn=_t5_ffn(1),
    norm_first=True,
    final_norm="encoder.final_layer_norm",
)
_T5_DECODER = replace(
    _T5_ENCODER,
    root="decoder",
    layer="decoder.block.{}",
    num_layers_key="num_decoder_layers",
    attentions=(_t5_attention("self", 0, "SelfAttention"), _t5_attention("cross", 1, "EncDecAttention")),
    ffn=_t5_ffn(2),
    final_norm="decoder.final_layer_norm",
)

ENCODER_DECODERS: tuple[Anatomy, ...] = (
    _BART,
    replace(
        _BART,
        family="mbart",
        model_types=("mbart",),
        stacks=(
            replace(_BART_ENCODER, norm_first=True, final_norm="encoder.layer_norm"),
            replace(_BART_DECODER, norm_first=True, final_norm="decoder.layer_norm"),
        ),
    ),
    Anatomy(
        family="t5",
        model_types=("t5", "mt5"),
        stacks=(_T5_ENCODER, _T5_DECODER),
        hidden_size_key="d_model",
        pooling="last",
        prompt=PromptSite(stack="encoder"),
        output_head="seq2seq",
        max_length_key=None,
    ),
)
