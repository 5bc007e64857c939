"""Prefixes: learned keys and values in attention heads (Li and Liang 2021; He et al. 2022, sections 3.1 and 4.4).

They may be trained through a small network, which is dropped afterwards: only the vectors are stored, and the papers
count only their parameters. `continual_petl.banks.attention_hooks` applies them.

Shape suffixes: L number of vectors, K width of all keys of an attention module, V width of all values.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from continual_petl.backbones.sites import Layer, Sites
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.arithmetic import Part, empty_linear, own_precision
from continual_petl.banks.forms.base import Form, PrefixPlacement, Shapes, key
from continual_petl.banks.forms.init import Generators, draw, draw_as_torch
from continual_petl.errors import InputError

TRAINED = "trained"
"""Key of the networks in a group; they are dropped after training."""


class Prefix(Part):
    """Keys and values of one attention module: L(K + V) parameters (Li and Liang 2021; He et al. 2022, section 3.1)."""

    def __init__(self, modification: Modification, key_width: int, value_width: int) -> None:
        super().__init__(modification)
        assert modification.bottleneck is not None, "checked by the specification"
        self.key = nn.Parameter(torch.empty(modification.bottleneck, key_width))
        self.value = nn.Parameter(torch.empty(modification.bottleneck, value_width))
        if modification.composition == "learned":
            self.scale = nn.Parameter(torch.empty(()))
        self.dropout = nn.Dropout(modification.dropout)

    @torch.no_grad()
    def initialise(self, generators: Generators) -> None:
        """Draw fresh keys and values; init: lora sets the values to zero."""
        draw(self.key, self.modification, generators("key"), zero=False)
        draw(self.value, self.modification, generators("value"), zero=True)
        if self.modification.composition == "learned":
            self.scale.fill_(self.modification.scale)

    def vectors(self) -> tuple[Tensor, Tensor]:
        """Return keys (L, K) and values (L, V)."""
        return self.dropout(self.key), self.dropout(self.value)


class PrefixMLP(Part):
    """The prefixes of one type of attention in all layers, trained through one MLP (Li and Liang 2021, section 4.3).

    ``P = W2 tanh(W1 E + b1) + b2`` with a table E of L vectors as wide as the model; initialised as in the code of He et al.
    2022: E from a standard normal, the linear layers with torch's default.

    Args:
        modification: the prefix.
        width: width of the model.
        widths: widths of the keys and values of every layer, in order.
    """

    def __init__(self, modification: Modification, width: int, widths: list[tuple[int, int]]) -> None:
        super().__init__(modification)
        assert modification.bottleneck is not None, "checked by the specification"
        self.widths = widths
        self.table = nn.Parameter(torch.empty(modification.bottleneck, width))
        self.into = empty_linear(width, modification.hidden, bias=True)
        self.out = empty_linear(modification.hidden, sum(k + v for k, v in widths), bias=True)
        if modification.composition == "learned":
            self.scale = nn.Parameter(torch.empty(len(widths)))
        self.dropout = nn.Dropout(modification.dropout)

    @torch.no_grad()
    def initialise(self, generators: Generators) -> None:
        """Draw fresh values."""
        self.table.normal_(generator=generators("table"))
        for name, layer in (("into", self.into), ("out", self.out)):
            draw_as_torch(layer, generators.of(name))
        if self.modification.composition == "learned":
            self.scale.fill_(self.modification.scale)

    def scales(self) -> list[Tensor | float]:
        """Return the factor s of every layer; a learned s is a separate parameter, not an output of the MLP."""
        if self.modification.composition == "learned":
            return [*self.scale.unbind()]
        return [self.modification.scale] * len(self.widths)

    def vectors(self) -> list[tuple[Tensor, Tensor]]:
        """Return keys (L, K) and values (L, V) of every layer."""
        with own_precision(self.table):
            flat = self.dropout(self.out(torch.tanh(self.into(self.table))))
        parts = flat.split([width for pair in self.widths for width in pair], dim=-1)
        return list(zip(parts[::2], parts[1::2], strict=True))


class AttentionForm(Form):
    """The form ``attention``."""

    def build(
        self, modification: Modification, sites: Sites, layers: list[Layer], shapes: Shapes, *, folded: bool
    ) -> nn.ModuleDict:
        """Return a prefix for every attention module, or the MLPs that train the prefixes; see `Form.build`."""
        _check_registry(sites)
        if modification.reparametrise != "none" and not folded:
            return nn.ModuleDict({TRAINED: _mlps(modification, sites, layers)})
        return nn.ModuleDict(
            {
                key(layer): nn.ModuleDict(
                    {name: Prefix(modification, *pair) for name, pair in _widths(sites, layer).items()}
                )
                for layer in layers
            }
        )

    def prefixes(
        self, modification: Modification, sites: Sites, layers: list[Layer], group: nn.ModuleDict
    ) -> list[PrefixPlacement]:
        """Return keys and values of every attention module; see `Form.prefixes`."""
        made: dict[str, Iterator[tuple[tuple[Tensor, Tensor], Tensor | float]]] = {
            kind: iter(zip(m.vectors(), m.scales(), strict=True))
            for kind, m in (group[TRAINED].named_children() if TRAINED in group else ())
            if isinstance(m, PrefixMLP)
        }
        found = []
        for layer in layers:
            for attention in layer.stack.attentions:
                if made:
                    (keys, values), scale = next(made[_kind(sites, layer, attention.name)])
                else:
                    prefix = group[key(layer)].get_submodule(attention.name)
                    assert isinstance(prefix, Prefix)
                    keys, values = prefix.vectors()
                    scale = prefix.scale if modification.composition == "learned" else modification.scale
                found.append(PrefixPlacement(modification, layer, attention.name, keys, values, scale))
        return found

    def is_folded(self, group: nn.ModuleDict) -> bool:
        """Return whether the prefixes no longer have MLPs; see `Form.is_folded`."""
        return TRAINED not in group

    def fold(self, modification: Modification, sites: Sites, layers: list[Layer], group: nn.ModuleDict) -> None:
        """Replace the MLPs with the vectors they produce; see `Form.fold`."""
        if self.is_folded(group):
            return
        group.eval()
        for placement in self.prefixes(modification, sites, layers, group):
            layer = group[key(placement.layer)] if key(placement.layer) in group else nn.ModuleDict()
            assert isinstance(layer, nn.ModuleDict)
            flat = Prefix(modification, placement.keys.shape[1], placement.values.shape[1])
            flat.to(placement.keys)
            flat.key.copy_(placement.keys)
            flat.value.copy_(placement.values)
            if modification.composition == "learned":
                flat.scale.copy_(torch.as_tensor(placement.scale))
            layer[placement.name] = flat.requires_grad_(False)
            group[key(placement.layer)] = layer
        del group[TRAINED]


def _widths(sites: Sites, layer: Layer) -> dict[str, tuple[int, int]]:
    """Return the widths of all keys and all values of each attention module of a layer."""
    return {
        attention.name: (sites.width(layer, attention.key).out, sites.width(layer, attention.value).out)
        for attention in layer.stack.attentions
    }


def _mlps(modification: Modification, sites: Sites, layers: list[Layer]) -> nn.ModuleDict:
    """Return one MLP for each type of attention: encoder self-attention, decoder self-attention, cross-attention."""
    kinds: dict[str, list[tuple[int, int]]] = {}
    for layer in layers:
        for name, widths in _widths(sites, layer).items():
            kinds.setdefault(_kind(sites, layer, name), []).append(widths)
    width = sites.hidden_width(sites.layers[0])
    return nn.ModuleDict({kind: PrefixMLP(modification, width, widths) for kind, widths in kinds.items()})


def _kind(sites: Sites, layer: Layer, attention: str) -> str:
    """Return the name of a type of attention: the number of its stack, and its name in the layer."""
    return f"stack_{sites.anatomy.stacks.index(layer.stack)}_{attention}"


def _check_registry(sites: Sites) -> None:
    if not sites.anatomy.attention_registry:
        raise InputError(
            f"bank: family {sites.anatomy.family!r} computes attention in its own code, not through the attention "
            "registry of transformers, so its heads cannot be modified (form: attention on heads, as in the presets "
            "prefix, prefix_flat, multihead_parallel, mam and mam_flat). Use bottleneck, low-rank, prompt or additive forms "
            "instead."
        )


FORM = AttentionForm()
