"""Describes the anatomy of a model family: the paths of its layers, attention modules, projections and norms.

A family is described once, as data, in `continual_petl.backbones.families`; no other code contains module names of
`transformers`. Users add a description with `register_anatomy`. Paths of a layer's parts are relative to the layer, all
other paths to the base model (without a language-modelling head).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from continual_petl.errors import InputError

Pooling = Literal["first", "pooler", "mean", "last"]
"""How token states are reduced to one vector: the first token, the first token through the frozen pooler, the mean of all
tokens, or the last token of the text (decoders, whose earlier tokens have not seen the whole text)."""

OutputHead = Literal["none", "seq2seq", "causal"]
"""The type of language-modelling head in the family's checkpoints."""


@dataclass(frozen=True, kw_only=True)
class Projection:
    """One linear map, or one part of a module that computes several at once."""

    path: str
    part: int = 0
    """Index among ``num_parts`` equal parts of the outputs."""
    num_parts: int = 1
    heads_key: str | None = None
    """Configuration key with the number of heads, if the parts are interleaved by head (DeBERTa) rather than in blocks."""
    also_positions: bool = False
    """Whether the module also projects relative positions (DeBERTa-v2), in a separate call whose input is not a batch of
    rows."""


@dataclass(frozen=True, kw_only=True)
class Attention:
    """One attention sub-layer of a layer."""

    name: Literal["self", "cross"]
    module: str
    """The module that `transformers` passes to its attention function."""
    query: Projection
    key: Projection
    value: Projection
    out: str
    """The projection of the concatenated heads back to the hidden size."""
    result: str
    """The module whose output is the sub-layer's result before the residual is added, after dropout if there is any."""
    norm: str
    """The LayerNorm of the sub-layer: applied after the residual, or before the sub-layer if ``Stack.norm_first`` is set."""


@dataclass(frozen=True, kw_only=True)
class FeedForward:
    """The FFN of a layer."""

    into: tuple[Projection, ...]
    """The first projections, which need not all exist in a model; a gated FFN has two. Their input is the FFN's input."""
    out: str
    """The projection back to the hidden size."""
    result: str
    """See `Attention.result`."""
    norm: str
    """See `Attention.norm`."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A stack of similar layers: the encoder or the decoder."""

    layer: str
    """Path of a layer, with ``{}`` for its number in the stack."""
    num_layers_key: str
    """Configuration key with the number of layers."""
    attentions: tuple[Attention, ...]
    ffn: FeedForward
    norm_first: bool = False
    """Whether sub-layers normalise their input (pre-norm) instead of the sum with the residual (post-norm)."""
    root: str = ""
    """The module that holds the stack; its parts outside the layers belong to the stack's first layer."""
    embedding_norm: str | None = None
    """LayerNorm of the embeddings; belongs to the stack's first layer."""
    final_norm: str | None = None
    """LayerNorm after the last layer; belongs to the stack's last layer."""
    extra_norms: tuple[str, ...] = ()
    """Further LayerNorms in a layer (those of queries and keys), if the model has them."""
    outer_norms: tuple[str, ...] = ()
    """Further LayerNorms outside the layers, if the model has them; they belong to the stack's first layer."""


@dataclass(frozen=True, kw_only=True)
class PromptSite:
    """Where prompts are inserted into the token embeddings; exactly one of ``norm`` and ``stack`` is given."""

    norm: str | None = None
    """A module whose input is the complete sum of all embeddings (the embeddings' LayerNorm or dropout)."""
    stack: str | None = None
    """A module that takes ``inputs_embeds`` and creates its own masks (empty: the base model)."""
    positions: str | None = None
    """If ``stack`` is given: the learned absolute position embedding, which is not applied to prompts and must not be
    shifted."""

    def __post_init__(self) -> None:
        if (self.norm is None) == (self.stack is None):
            raise ValueError(
                f"a PromptSite is either before a norm or before a stack, so give exactly one of the two: got {self}"
            )


@dataclass(frozen=True, kw_only=True)
class Anatomy:
    """One family of models: its stacks and their sites, pooling, output head and position limits."""

    family: str
    """Name of the family in messages and on disk."""
    model_types: tuple[str, ...]
    """The ``model_type`` values of `transformers` configurations that have this anatomy."""
    stacks: tuple[Stack, ...]
    """Encoder and decoder, or the only stack. Layers are numbered across stacks."""
    hidden_size_key: str = "hidden_size"
    pooling: Pooling = "first"
    """The family's default pooling."""
    pooler: str | None = None
    """The module used by the ``pooler`` pooling; None if the family has none."""
    attention_registry: bool = True
    """Whether the family computes attention through the registry of `transformers`, which prefixes require."""
    prompt: PromptSite | None = None
    """Where prompts are inserted; None if the family does not support prompts."""
    output_head: OutputHead = "none"
    images: bool = False
    """Whether the family reads images instead of text."""
    max_length_key: str | None = "max_position_embeddings"
    """Configuration key with the maximum number of tokens; None if the configuration sets no limit (T5, whose positions are
    relative), and for images."""
    positions_after_padding: bool = False
    """Whether positions start at the padding id + 1 (RoBERTa), which leaves room for fewer tokens."""

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether an encoder reads one text and a decoder another."""
        return len(self.stacks) > 1


_ANATOMIES: dict[str, Anatomy] = {}


def register_anatomy(anatomy: Anatomy) -> None:
    """Register a family. Raises `ValueError` if one of its model types already has a description."""
    for model_type in anatomy.model_types:
        if model_type in _ANATOMIES:
            raise ValueError(f"model type {model_type!r} already has the anatomy of {_ANATOMIES[model_type].family!r}")
    _ANATOMIES.update(dict.fromkeys(anatomy.model_types, anatomy))


def find_anatomy(model_type: str) -> Anatomy:
    """Return the description of a `transformers` model type, or raise `InputError` showing how to write one."""
    if model_type not in _ANATOMIES:
        part = 'Projection(path="...")'
        raise InputError(
            f"backbone: model type {model_type!r} has no anatomy; known model types are {', '.join(sorted(_ANATOMIES))}. "
            "Describe it once, from Python, with continual_petl.backbones: if it is built like a known model type, "
            f'register_anatomy(dataclasses.replace(find_anatomy("llama"), family="{model_type}", '
            f'model_types=("{model_type}",))); otherwise register_anatomy(Anatomy(family="{model_type}", '
            f'model_types=("{model_type}",), stacks=(Stack(layer="encoder.layer.{{}}", '
            'num_layers_key="num_hidden_layers", attentions=(Attention(name="self", module="...", '
            f'query={part}, key={part}, value={part}, out="...", result="...", norm="..."),), '
            f'ffn=FeedForward(into=({part},), out="...", result="...", norm="...")),))), with the module path of every '
            "site; print(model) shows the paths, and docs/backbones.md has a complete example."
        )
    return _ANATOMIES[model_type]


def known_families() -> tuple[str, ...]:
    """Return the names of all described families."""
    return tuple(sorted({anatomy.family for anatomy in _ANATOMIES.values()}))
