"""Where the forms that read and write token states join: forward hooks on modules of the backbone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from continual_petl.backbones.sites import Sites, attention_of
from continual_petl.banks.bank import Placement
from continual_petl.banks.build import projections

Hook = Callable[[nn.Module, Sites, Placement], list[RemovableHandle]]


Behind = Mapping[nn.Module, Callable[[Tensor], Tensor]]
NOTHING: Behind = MappingProxyType({})


def hook(model: nn.Module, sites: Sites, placement: Placement, behind: Behind = NOTHING) -> list[RemovableHandle]:
    """Put one form in place; it acts until its handles are removed.

    Args:
        model: the backbone.
        sites: of it.
        placement: the form and its place.
        behind: what follows the forward method of a norm, where hooks make it another one (each row's own).
    """
    modification = placement.modification
    if modification.form == "lowrank":
        return _projection(model, sites, placement)
    if modification.insertion == "sequential":
        return (
            _before_norm(model, placement, behind) if modification.normalised_input else _sequential(model, placement)
        )
    return _heads(model, placement) if modification.modifies == "heads" else _parallel(model, sites, placement)


def _result(placement: Placement) -> str:
    """Return the module whose output is the result of the placement's sub-layer."""
    layer = placement.layer
    sublayer = layer.stack.ffn if placement.name == "ffn" else attention_of(layer, placement.name)
    return layer.full(sublayer.result)


def _sequential(model: nn.Module, placement: Placement) -> list[RemovableHandle]:
    """``h <- h + s delta(h)`` before the residual (Houlsby et al. 2019, section 2.1)."""

    def after(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return placement.form.change(output, output)

    return [model.get_submodule(_result(placement)).register_forward_hook(after)]


def _before_norm(model: nn.Module, placement: Placement, behind: Behind) -> list[RemovableHandle]:
    """``y = LN(A(LN(u)) + u)`` with one LayerNorm used twice (Pfeiffer et al. 2021), u the sum with the residual."""
    norm = model.get_submodule(placement.layer.full(placement.layer.stack.ffn.norm))

    def before(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        # Calling forward directly keeps this hook from calling itself.
        normed = module.forward(args[0])
        return (placement.form.change(args[0], behind[module](normed) if module in behind else normed),)

    return [norm.register_forward_pre_hook(before)]


def _remembering(module: nn.Module) -> tuple[list[Tensor], RemovableHandle]:
    """Return a list that holds the module's input while its sub-layer runs."""
    read: list[Tensor] = []

    def remember(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        # The first call is the one: DeBERTa-v2 projects relative positions by the same module afterwards.
        if not read:
            read.append(args[0])

    return read, module.register_forward_pre_hook(remember)


def _parallel(model: nn.Module, sites: Sites, placement: Placement) -> list[RemovableHandle]:
    """``h <- h + s delta(x)``, x the sub-layer's own input (He et al. 2022, section 3.2); normalised in pre-norm models."""
    layer = placement.layer
    first = sites.into(layer)[0] if placement.name == "ffn" else attention_of(layer, placement.name).query
    read, handle = _remembering(model.get_submodule(layer.full(first.path)))

    def add(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return placement.form.change(output, read.pop())

    return [handle, model.get_submodule(_result(placement)).register_forward_hook(add)]


def _heads(model: nn.Module, placement: Placement) -> list[RemovableHandle]:
    """``h <- h + s delta(x)``, h the concatenated heads before their output projection (the code of He et al. 2022)."""
    attention = attention_of(placement.layer, placement.name)
    read, handle = _remembering(model.get_submodule(placement.layer.full(attention.query.path)))

    def before(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (placement.form.change(args[0], read.pop()), *args[1:])

    return [handle, model.get_submodule(placement.layer.full(attention.out)).register_forward_pre_hook(before)]


def _projection(model: nn.Module, sites: Sites, placement: Placement) -> list[RemovableHandle]:
    """``y <- W x + b + s delta(x)`` on one projection (Hu et al. 2022), or on its part of a fused one."""
    layer = placement.layer
    projection = projections(sites, layer, placement.modification.modifies)[placement.name]
    columns = sites.columns(layer, projection) if projection.num_parts > 1 else None

    def add(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if columns is None:
            return placement.form.change(output, args[0])
        changed = output.clone()
        changed[..., columns] = placement.form.change(output[..., columns], args[0])
        return changed

    return [model.get_submodule(layer.full(projection.path)).register_forward_hook(add)]
