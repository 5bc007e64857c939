"""Forms that act on one projection: query, key, value, attention output, or the FFN's first or second projection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from continual_petl.backbones.anatomy import Projection
from continual_petl.backbones.sites import Layer, Sites
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.base import Behind, InLayers, Placement


def projections(sites: Sites, layer: Layer, modifies: str) -> dict[str, Projection]:
    """Return the projections that a form at this site changes, by their names in the bank."""
    stack = layer.stack
    match modifies:
        case "ffn_in":
            into = sites.into(layer)
            # A gated FFN has two first projections; each gets its own change.
            return {"ffn_in" if len(into) == 1 else f"ffn_in_{i}": projection for i, projection in enumerate(into)}
        case "ffn_out" | "ffn_inner":
            # Inner states are the input of the second projection.
            return {modifies: Projection(path=stack.ffn.out)}
        case "attention_out":
            return {attention.name: Projection(path=attention.out) for attention in stack.attentions}
    return {attention.name: getattr(attention, modifies) for attention in stack.attentions}


Merged = tuple[Tensor, Tensor | None]
"""Weight and bias of a projection."""


class OnProjection(InLayers):
    """A form whose deltas read the input of a projection and change its output."""

    early: ClassVar[bool] = True
    reads_weight: ClassVar[bool] = False
    """Whether its deltas depend on the projection's weight and bias."""

    def attach(self, model: nn.Module, sites: Sites, placement: Placement, behind: Behind) -> list[RemovableHandle]:
        """``y <- W x + b + s delta(x)`` on one projection, which may be only a part of its module; see `Form.attach`."""
        path, columns = part_of(sites, placement)

        def change(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            delta = placement.delta
            if self.reads_weight:
                delta = delta.on(*_frozen(module, columns, behind, output))
            if columns is None:
                return delta.change(output, args[0])
            changed = output.clone()
            changed[..., columns] = delta.change(output[..., columns], args[0])
            return changed

        return [model.get_submodule(path).register_forward_hook(change)]

    def reads_positions(self, modification: Modification, sites: Sites, layers: list[Layer]) -> str | None:
        """Return a changed projection that is also applied to relative positions; see `Form.reads_positions`."""
        found = (
            layer.full(p.path)
            for layer in layers
            for p in projections(sites, layer, modification.modifies).values()
            if p.also_positions
        )
        return next(found, None)

    @torch.no_grad()
    def initialise(self, model: nn.Module, sites: Sites, placement: Placement) -> None:
        """Initialise from the projection's weight if deltas depend on it; see `Form.initialise`."""
        if self.reads_weight:
            path, columns = part_of(sites, placement)
            module = model.get_submodule(path)
            self.start(placement, rows_of(module.get_parameter("weight"), module, columns))

    def start(self, placement: Placement, weight_OI: Tensor) -> None:
        """Set the parameters that are initialised from the projection's weight."""

    def merge(self, whole: nn.Module, sites: Sites, placement: Placement, base: Mapping[str, Tensor]) -> None:
        """Merge one delta into the rows of its projection; see `Form.merge`."""
        path, columns = part_of(sites, placement)
        module, part = whole.get_submodule(path), slice(None) if columns is None else columns
        weight, bias = module.get_parameter("weight"), getattr(module, "bias", None)
        rows, based = (rows_of(w, module, None) for w in (weight, base[f"{path}.weight"]))
        own_bias = None if bias is None else bias[part]
        rows[part], merged_bias = self.merged(placement, rows[part], own_bias, based[part])
        if bias is not None:
            bias[part] = merged_bias

    def merged(self, placement: Placement, weight_OI: Tensor, bias_O: Tensor | None, base_OI: Tensor) -> Merged:
        """Return a projection's weight and bias with a delta merged into them.

        Args:
            placement: the delta and its place.
            weight_OI: the weight, with earlier deltas already merged into it.
            bias_O: the bias, likewise; None if there is none.
            base_OI: the weight without any deltas.
        """
        raise NotImplementedError


def part_of(sites: Sites, placement: Placement) -> tuple[str, slice | list[int] | None]:
    """Return the full path of a placement's module, and which of its outputs are the projection's; None means all."""
    layer = placement.layer
    projection = projections(sites, layer, placement.modification.modifies)[placement.name]
    return layer.full(projection.path), sites.columns(layer, projection) if projection.num_parts > 1 else None


def rows_of(weight: Tensor, module: nn.Module, columns: slice | list[int] | None) -> Tensor:
    """Return the weight of a part of a projection (O, I); GPT-2's Conv1D stores it as (I, O)."""
    rows = weight.t() if hasattr(module, "nf") else weight
    return rows if columns is None else rows[columns]


def _frozen(
    module: nn.Module, columns: slice | list[int] | None, behind: Behind, output: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Return the weight and bias that a part of a projection uses in this pass."""
    bias: Tensor | None = getattr(module, "bias", None)
    if module in behind:
        # Each row has its own bias, which is added after the module.
        bias = behind[module](output.new_zeros(len(output), 1, output.shape[-1]))
    if bias is not None and columns is not None:
        bias = bias[..., columns]
    return rows_of(cast(Tensor, module.weight), module, columns), bias
