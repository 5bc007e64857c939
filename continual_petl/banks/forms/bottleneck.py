"""Adapters: a bottleneck in parallel with or after a sub-layer (Houlsby et al. 2019; He et al. 2022, section 3.2).

Shape suffixes: I width of the input, O width of the output, R bottleneck; leading axes are free.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from continual_petl.backbones.sites import Layer, Sites, attention_of
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.arithmetic import ACTIVATIONS, Delta, cast_linear, cast_norm, empty_linear
from continual_petl.banks.forms.base import Behind, InLayers, Placement, check_size
from continual_petl.banks.forms.init import Generators, draw_linear
from continual_petl.errors import InputError


class Bottleneck(Delta):
    """``delta(x) = W_up phi(W_down x + b_down) + b_up``: IR + RO + R + O parameters (Houlsby et al. 2019, section 2.1).

    Dropout acts on the bottleneck's activation, as in the code of He et al. 2022. Further layers (``depth``) are R by R
    with a bias, each followed by the non-linearity; ``input_norm`` is a LayerNorm of 2I parameters on ``x``, ``output_norm``
    a LayerNorm of 2O parameters on the change. The latter is ``ln_after`` of `adapters` 1.3
    (``methods/modeling.py``), where the scale is applied before the norm and so has hardly any effect; here it is applied
    after the norm.

    Example:
        >>> spec = Modification(form="bottleneck", modifies="ffn", insertion="sequential", bottleneck=2)
        >>> sum(p.numel() for p in Bottleneck(spec, 8, 8).parameters())
        42
    """

    def __init__(self, modification: Modification, width_in: int, width_out: int) -> None:
        super().__init__(modification)
        size = modification.bottleneck
        assert size is not None, "checked by the specification"
        self.norm = nn.LayerNorm(width_in) if modification.input_norm else None
        self.down = empty_linear(width_in, size, bias=True)
        self.middle = nn.ModuleList(empty_linear(size, size, bias=True) for _ in range(modification.depth - 1))
        self.up = empty_linear(size, width_out, bias=True)
        self.dropout = nn.Dropout(modification.dropout)
        self.norm_after = nn.LayerNorm(width_out) if modification.output_norm else None

    @torch.no_grad()
    def initialise(self, generators: Generators) -> None:
        """Draw fresh values; see `Delta.initialise`."""
        super().initialise(generators)
        layers = {"down": self.down, **{f"middle.{i}": layer for i, layer in enumerate(self.middle)}, "up": self.up}
        for name, layer in layers.items():
            assert isinstance(layer, nn.Linear)
            draw_linear(layer, self.modification, generators, name, zero=name == "up")
        for norm in (self.norm, self.norm_after):
            if norm is not None:
                norm.weight.fill_(1.0)
                norm.bias.zero_()

    def delta(self, x_I: Tensor) -> Tensor:
        """Return the change; see `Delta.delta`."""
        phi = ACTIVATIONS[self.modification.activation]
        if self.norm is not None:
            x_I = cast_norm(x_I, self.norm)
        hidden_R = phi(cast_linear(x_I, self.down))
        for layer in self.middle:
            hidden_R = phi(cast_linear(hidden_R, layer))
        delta_O = cast_linear(self.dropout(hidden_R), self.up)
        return delta_O if self.norm_after is None else cast_norm(delta_O, self.norm_after)


class BottleneckForm(InLayers):
    """The form ``bottleneck``."""

    def deltas(self, modification: Modification, sites: Sites, layer: Layer) -> dict[str, nn.Module]:
        """Return one adapter for the FFN, or one for each attention module; see `InLayers.deltas`."""
        hidden = sites.hidden_width(layer)
        check_size("bottleneck", modification.bottleneck, hidden, "the hidden size of the backbone")
        if modification.normalised_input and layer.stack.norm_first:
            raise InputError(
                f"bank: normalised_input reads the FFN's output after the residual and its LayerNorm, but family "
                f"{sites.anatomy.family!r} normalises before its sub-layers. Write normalised_input: false (the adapter then "
                "reads the FFN's output), or choose another preset."
            )
        if modification.modifies == "ffn":
            return {"ffn": Bottleneck(modification, hidden, hidden)}
        heads = modification.modifies == "heads"
        return {
            a.name: Bottleneck(modification, hidden, sites.module_width(layer.full(a.out)).into if heads else hidden)
            for a in layer.stack.attentions
        }

    def attach(self, model: nn.Module, sites: Sites, placement: Placement, behind: Behind) -> list[RemovableHandle]:
        """Attach one adapter; see `Form.attach`."""
        modification = placement.modification
        if modification.insertion == "sequential":
            normalised = modification.normalised_input
            return _before_norm(model, placement, behind) if normalised else _sequential(model, placement)
        return _heads(model, placement) if modification.modifies == "heads" else _parallel(model, sites, placement)


def _result(placement: Placement) -> str:
    """Return the path of the module whose output is the result of the placement's sub-layer."""
    layer = placement.layer
    sublayer = layer.stack.ffn if placement.name == "ffn" else attention_of(layer, placement.name)
    return layer.full(sublayer.result)


def _sequential(model: nn.Module, placement: Placement) -> list[RemovableHandle]:
    """``h <- h + s delta(h)`` before the residual (Houlsby et al. 2019, section 2.1)."""

    def after(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return placement.delta.change(output, output)

    return [model.get_submodule(_result(placement)).register_forward_hook(after)]


def _before_norm(model: nn.Module, placement: Placement, behind: Behind) -> list[RemovableHandle]:
    """``y = LN(A(LN(u)) + u)`` with one LayerNorm used twice, where u includes the residual (Pfeiffer et al. 2021)."""
    norm = model.get_submodule(placement.layer.full(placement.layer.stack.ffn.norm))

    def before(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        # Calling forward directly does not trigger this hook again.
        normed = module.forward(args[0])
        return (placement.delta.change(args[0], behind[module](normed) if module in behind else normed),)

    return [norm.register_forward_pre_hook(before)]


def _record_input(module: nn.Module) -> tuple[list[Tensor], RemovableHandle]:
    """Return a list that holds the module's input while its sub-layer runs, and the handle of the hook that records it."""
    read: list[Tensor] = []

    def remember(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        # Only the first call counts: DeBERTa-v2 later projects relative positions with the same module.
        if not read:
            read.append(args[0])

    return read, module.register_forward_pre_hook(remember)


def _parallel(model: nn.Module, sites: Sites, placement: Placement) -> list[RemovableHandle]:
    """``h <- h + s delta(x)``, x the sub-layer's input, after the norm in pre-norm models (He et al. 2022, section 3.2)."""
    layer = placement.layer
    first = sites.into(layer)[0] if placement.name == "ffn" else attention_of(layer, placement.name).query
    read, handle = _record_input(model.get_submodule(layer.full(first.path)))

    def add(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return placement.delta.change(output, read.pop())

    return [handle, model.get_submodule(_result(placement)).register_forward_hook(add)]


def _heads(model: nn.Module, placement: Placement) -> list[RemovableHandle]:
    """``h <- h + s delta(x)``, h the concatenated heads before their output projection (the code of He et al. 2022)."""
    attention = attention_of(placement.layer, placement.name)
    read, handle = _record_input(model.get_submodule(placement.layer.full(attention.query.path)))

    def before(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (placement.delta.change(args[0], read.pop()), *args[1:])

    return [handle, model.get_submodule(placement.layer.full(attention.out)).register_forward_pre_hook(before)]


FORM = BottleneckForm()
