"""Where the sites of a bank are in each model family.

A family is described once, as data: the module path of every site, counted per layer. Nothing else in the project knows
the name of a module of `transformers`. A new family is one more `Anatomy`; `register_anatomy` takes one from a user.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from continual_petl.errors import InputError

if TYPE_CHECKING:
    from torch import nn

Pooling = Literal["first", "pooler", "mean"]
"""How token states become one vector: the first token, the first token through the frozen pooler, or their mean."""


@dataclass(frozen=True, kw_only=True)
class Anatomy:
    """The sites of one family. Paths inside a layer are relative to ``layer``, which holds ``{}`` for its number."""

    family: str
    """Name of the family in messages and on disk."""
    model_types: tuple[str, ...]
    """The ``model_type`` values of `transformers` configurations that have this anatomy."""
    layer: str
    query: str
    key: str
    value: str
    attention_out: str
    """The projection back to the hidden size after multi-head attention."""
    attention: str
    """The module whose output is the attention sub-layer's result, dropout applied, before the residual is added."""
    attention_norm: str
    """The LayerNorm after the attention sub-layer's residual."""
    ffn_in: str
    """The first projection of the FFN; its input is the FFN's input."""
    ffn_out: str
    """The projection back to the hidden size."""
    ffn: str
    """The module whose output is the FFN sub-layer's result, dropout applied, before the residual is added."""
    ffn_norm: str
    """The LayerNorm after the FFN's residual; its input is the FFN's result plus the residual (post-norm families)."""
    embedding_norm: str
    num_layers_key: str = "num_hidden_layers"
    hidden_size_key: str = "hidden_size"
    pooling: Pooling = "first"
    """The family's own way to one vector."""
    pooler: str | None = None
    """The module that the ``pooler`` way goes through; None where the family has none."""

    def site(self, name: str, layer: int) -> str:
        """Return the full path of a site's module in one layer."""
        return f"{self.layer.format(layer)}.{getattr(self, name)}"

    def norms(self, layers: tuple[int, ...]) -> list[str]:
        """Return the paths of the LayerNorms inside a layer range; the embedding's belongs to layer 0."""
        found = [self.embedding_norm] if 0 in layers else []
        for layer in layers:
            found += [self.site("attention_norm", layer), self.site("ffn_norm", layer)]
        return found

    def check(self, model: nn.Module, num_layers: int) -> None:
        """Raise `InputError` if a site that this description names is not in the model."""
        modules = {name for name, _ in model.named_modules()}
        paths = [self.site(name, layer) for layer in range(num_layers) for name in SITES]
        missing = [path for path in [*paths, self.embedding_norm] if path not in modules]
        if missing:
            raise InputError(
                f"backbone of family {self.family!r} ({type(model).__name__}): the anatomy names "
                f"{len(missing)} modules that the model does not have, first {missing[0]!r}. The installed transformers "
                "may have renamed them: register a corrected Anatomy with continual_petl.backbones.register_anatomy."
            )


SITES = (
    "query",
    "key",
    "value",
    "attention_out",
    "attention",
    "attention_norm",
    "ffn_in",
    "ffn_out",
    "ffn",
    "ffn_norm",
)

_BERT_SITES = {
    "layer": "encoder.layer.{}",
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_out": "attention.output.dense",
    "attention": "attention.output.dropout",
    "attention_norm": "attention.output.LayerNorm",
    "ffn_in": "intermediate.dense",
    "ffn_out": "output.dense",
    "ffn": "output.dropout",
    "ffn_norm": "output.LayerNorm",
    "embedding_norm": "embeddings.LayerNorm",
}

_ANATOMIES: dict[str, Anatomy] = {}


def register_anatomy(anatomy: Anatomy) -> None:
    """Make a family known. Raises `ValueError` if one of its model types already has a description."""
    for model_type in anatomy.model_types:
        if model_type in _ANATOMIES:
            raise ValueError(f"model type {model_type!r} already has the anatomy of {_ANATOMIES[model_type].family!r}")
    _ANATOMIES.update(dict.fromkeys(anatomy.model_types, anatomy))


def find_anatomy(model_type: str) -> Anatomy:
    """Return the description of a `transformers` model type, or raise `InputError` showing how to write one."""
    if model_type not in _ANATOMIES:
        raise InputError(
            f"backbone: model type {model_type!r} has no anatomy; known are {', '.join(sorted(_ANATOMIES))}. Describe it "
            f'once: register_anatomy(Anatomy(family="{model_type}", model_types=("{model_type}",), '
            'layer="encoder.layer.{}", query="attention.self.query", ..., embedding_norm="embeddings.LayerNorm")) from '
            "continual_petl.backbones, with the module path of every site; print(model) shows the paths."
        )
    return _ANATOMIES[model_type]


def known_families() -> tuple[str, ...]:
    """Return the names of all described families."""
    return tuple(sorted({anatomy.family for anatomy in _ANATOMIES.values()}))


register_anatomy(Anatomy(family="bert", model_types=("bert",), pooling="pooler", pooler="pooler", **_BERT_SITES))
# RoBERTa was pre-trained without a pooler: what transformers builds there is random unless a checkpoint brings one.
register_anatomy(Anatomy(family="roberta", model_types=("roberta",), pooling="first", pooler="pooler", **_BERT_SITES))
register_anatomy(Anatomy(family="electra", model_types=("electra",), pooling="first", **_BERT_SITES))
register_anatomy(
    Anatomy(
        family="distilbert",
        model_types=("distilbert",),
        layer="transformer.layer.{}",
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        attention_out="attention.out_lin",
        # DistilBERT has no dropout after the attention's projection.
        attention="attention.out_lin",
        attention_norm="sa_layer_norm",
        ffn_in="ffn.lin1",
        ffn_out="ffn.lin2",
        ffn="ffn.dropout",
        ffn_norm="output_layer_norm",
        embedding_norm="embeddings.LayerNorm",
        num_layers_key="n_layers",
        hidden_size_key="dim",
        pooling="first",
    )
)
