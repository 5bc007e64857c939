"""Encoders: BERT and similar models, DistilBERT, MPNet, DeBERTa, DeBERTa-v2, ModernBERT."""

from __future__ import annotations

from dataclasses import replace

from continual_petl.backbones.anatomy import Anatomy, Attention, FeedForward, Projection, PromptSite, Stack
from continual_petl.backbones.families.parts import fused, separate

_BERT = Stack(
    layer="encoder.layer.{}",
    num_layers_key="num_hidden_layers",
    attentions=(
        separate(
            "attention.self",
            ("query", "key", "value"),
            "attention.output.dense",
            result="attention.output.dropout",
            norm="attention.output.LayerNorm",
        ),
    ),
    ffn=FeedForward(
        into=(Projection(path="intermediate.dense"),),
        out="output.dense",
        result="output.dropout",
        norm="output.LayerNorm",
    ),
    embedding_norm="embeddings.LayerNorm",
)
_PROMPT = PromptSite(norm="embeddings.LayerNorm")

_DISTILBERT = replace(
    _BERT,
    layer="transformer.layer.{}",
    num_layers_key="n_layers",
    # DistilBERT has no dropout after the attention's projection.
    attentions=(separate("attention", ("q_lin", "k_lin", "v_lin"), "attention.out_lin", norm="sa_layer_norm"),),
    ffn=FeedForward(
        into=(Projection(path="ffn.lin1"),), out="ffn.lin2", result="ffn.dropout", norm="output_layer_norm"
    ),
)

_MPNET = replace(
    _BERT,
    attentions=(
        separate(
            "attention.attn",
            ("q", "k", "v"),
            "attention.attn.o",
            result="attention.dropout",
            norm="attention.LayerNorm",
        ),
    ),
)

_QUERY, _KEY, _VALUE = fused("attention.self.in_proj", heads_key="num_attention_heads")
_DEBERTA = replace(_BERT, attentions=(replace(_BERT.attentions[0], query=_QUERY, key=_KEY, value=_VALUE),))

# Unless share_att_key is off, DeBERTa-v2 projects its relative positions with each layer's query and key projections.
_DEBERTA_V2 = replace(
    _BERT,
    attentions=(
        replace(
            _BERT.attentions[0],
            query=Projection(path="attention.self.query_proj", also_positions=True),
            key=Projection(path="attention.self.key_proj", also_positions=True),
            value=Projection(path="attention.self.value_proj"),
        ),
    ),
    outer_norms=("encoder.LayerNorm", "encoder.conv.LayerNorm"),
)

_QUERY, _KEY, _VALUE = fused("attn.Wqkv")
_MODERNBERT = Stack(
    layer="layers.{}",
    num_layers_key="num_hidden_layers",
    # The first layer reads the normalised embeddings: its attn_norm is an identity.
    attentions=(
        Attention(
            name="self",
            module="attn",
            query=_QUERY,
            key=_KEY,
            value=_VALUE,
            out="attn.Wo",
            result="attn.out_drop",
            norm="attn_norm",
        ),
    ),
    ffn=FeedForward(
        into=(Projection(path="mlp.Wi", part=0, num_parts=2), Projection(path="mlp.Wi", part=1, num_parts=2)),
        out="mlp.Wo",
        result="mlp.Wo",
        norm="mlp_norm",
    ),
    norm_first=True,
    embedding_norm="embeddings.norm",
    final_norm="final_norm",
)

_ENCODER = Anatomy(family="", model_types=(), stacks=(_BERT,), prompt=_PROMPT)

ENCODERS: tuple[Anatomy, ...] = (
    replace(_ENCODER, family="bert", model_types=("bert",), pooling="pooler", pooler="pooler"),
    # RoBERTa was pre-trained without a pooler: the one built by transformers is random unless a checkpoint contains one.
    replace(
        _ENCODER,
        family="roberta",
        model_types=("roberta", "xlm-roberta"),
        pooler="pooler",
        positions_after_padding=True,
    ),
    replace(_ENCODER, family="electra", model_types=("electra",)),
    replace(_ENCODER, family="distilbert", model_types=("distilbert",), stacks=(_DISTILBERT,), hidden_size_key="dim"),
    replace(
        _ENCODER,
        family="mpnet",
        model_types=("mpnet",),
        stacks=(_MPNET,),
        pooler="pooler",
        attention_registry=False,
        positions_after_padding=True,
    ),
    replace(_ENCODER, family="deberta", model_types=("deberta",), stacks=(_DEBERTA,), attention_registry=False),
    # DeBERTa-v3 is DeBERTa-v2 with different pre-training.
    replace(
        _ENCODER, family="deberta-v2", model_types=("deberta-v2",), stacks=(_DEBERTA_V2,), attention_registry=False
    ),
    # ModernBERT derives its rotary positions from the token ids, so prompts have to be inserted before the whole model.
    replace(
        _ENCODER,
        family="modernbert",
        model_types=("modernbert",),
        stacks=(_MODERNBERT,),
        prompt=PromptSite(stack=""),
    ),
)
