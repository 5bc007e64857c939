"""Decoders: GPT-2, Llama, and Qwen2 and Qwen3, which are built like Llama."""

from __future__ import annotations

from dataclasses import replace

from continual_petl.backbones.anatomy import Anatomy, Attention, FeedForward, Projection, PromptSite, Stack
from continual_petl.backbones.families.parts import fused, separate

_QUERY, _KEY, _VALUE = fused("attn.c_attn")
_GPT2 = Stack(
    layer="h.{}",
    num_layers_key="n_layer",
    attentions=(
        Attention(
            name="self",
            module="attn",
            query=_QUERY,
            key=_KEY,
            value=_VALUE,
            out="attn.c_proj",
            result="attn.resid_dropout",
            norm="ln_1",
        ),
    ),
    ffn=FeedForward(into=(Projection(path="mlp.c_fc"),), out="mlp.c_proj", result="mlp.dropout", norm="ln_2"),
    norm_first=True,
    final_norm="ln_f",
)

_LLAMA = Stack(
    layer="layers.{}",
    num_layers_key="num_hidden_layers",
    attentions=(separate("self_attn", ("q_proj", "k_proj", "v_proj"), "self_attn.o_proj", norm="input_layernorm"),),
    ffn=FeedForward(
        into=(Projection(path="mlp.gate_proj"), Projection(path="mlp.up_proj")),
        out="mlp.down_proj",
        result="mlp.down_proj",
        norm="post_attention_layernorm",
    ),
    norm_first=True,
    final_norm="norm",
)
_QWEN3 = replace(_LLAMA, extra_norms=("self_attn.q_norm", "self_attn.k_norm"))

_DECODER = Anatomy(
    family="llama",
    model_types=("llama",),
    stacks=(_LLAMA,),
    pooling="last",
    prompt=PromptSite(stack=""),
    output_head="causal",
)

DECODERS: tuple[Anatomy, ...] = (
    replace(
        _DECODER,
        family="gpt2",
        model_types=("gpt2",),
        stacks=(_GPT2,),
        hidden_size_key="n_embd",
        prompt=PromptSite(stack="", positions="wpe"),
        max_length_key="n_positions",
    ),
    _DECODER,
    replace(_DECODER, family="qwen2", model_types=("qwen2",)),
    replace(_DECODER, family="qwen3", model_types=("qwen3",), stacks=(_QWEN3,)),
)
