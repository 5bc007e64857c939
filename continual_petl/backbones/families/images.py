"""Image models: ViT."""

from __future__ import annotations

from continual_petl.backbones.anatomy import Anatomy, FeedForward, Projection, PromptSite, Stack
from continual_petl.backbones.families.parts import separate

# A layer has one dropout module for both sub-layers, so a sub-layer's result is the output of its last projection.
_VIT = Stack(
    layer="layers.{}",
    num_layers_key="num_hidden_layers",
    attentions=(separate("attention", ("q_proj", "k_proj", "v_proj"), "attention.o_proj", norm="layernorm_before"),),
    ffn=FeedForward(into=(Projection(path="mlp.fc1"),), out="mlp.fc2", result="mlp.fc2", norm="layernorm_after"),
    norm_first=True,
    final_norm="layernorm",
)

IMAGES: tuple[Anatomy, ...] = (
    Anatomy(
        family="vit",
        model_types=("vit",),
        stacks=(_VIT,),
        # Checkpoints of image classifiers contain no pooler.
        pooler="pooler",
        prompt=PromptSite(norm="embeddings.dropout"),
        images=True,
        max_length_key=None,
    ),
)
