"""LoRA and DoRA of `peft` as modifications of a bank: the reverse of `continual_petl.exchange.peft.lowrank`.

A bank has one rank and one set of layers for each type of projection, while peft may have different ones for every module.
Smaller ranks are padded with zeros, and projections that the adapter does not change get zero matrices: both add exact
zeros. Factors that differ become learned factors of the bank; a bank with magnitudes has no learned factors, so there they
are multiplied into B.

In a fused module, such as GPT-2's queries, keys and values, every part gets the columns of B that are not zero for it, with
the corresponding rows of A; a part without such columns is left unchanged.

Shape suffixes: I width of the input, O width of the outputs, R rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from continual_petl.backbones.sites import Sites
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.forms.base import Site
from continual_petl.banks.config.spec import BankSpec, Modification
from continual_petl.banks.forms.decomposed import Decomposed
from continual_petl.banks.forms.lowrank import LowRank
from continual_petl.banks.forms.projection import rows_of
from continual_petl.errors import InputError
from continual_petl.exchange.draft import Draft, put
from continual_petl.exchange.peft.read_config import PeftConfig, factor
from continual_petl.exchange.target_modules import LOW_RANK, TargetModule, check_known, layer_range, target_modules

Parts = dict[str, Tensor]
A, B, MAGNITUDE = "lora_A.weight", "lora_B.weight", "lora_magnitude_vector"


@dataclass(frozen=True)
class _Change:
    """The change at one place."""

    down_RI: Tensor
    up_OR: Tensor
    scale: float
    magnitude_O: Tensor | None


@torch.no_grad()
def low_rank(
    config: PeftConfig, changed: dict[str, Parts], names: dict[str, str], model: nn.Module, sites: Sites
) -> Draft:
    """Return the low-rank changes of an adapter.

    Args:
        config: its options.
        changed: tensors by the path of their module in the backbone.
        names: peft's name for each path.
        model: the backbone.
        sites: its sites.

    Raises:
        InputError: if a module is not a projection, or its tensors have the wrong shape.
    """
    every = target_modules(sites, LOW_RANK)
    check_known(changed, {target.path for target in every}, "low-rank changes of the projections in the layers")
    changes: dict[tuple[Site, str, int], _Change] = {}
    for target in every:
        if target.path in changed:
            change = _change(config, changed[target.path], names[target.path], model, target)
            if change is not None:
                changes[target.site, target.name, target.layer.number] = change
    rows = [_modification(config, site, changes) for site in LOW_RANK if any(key[0] == site for key in changes)]
    layers = layer_range({number for _, _, number in changes}, sites.num_layers)
    spec = BankSpec.model_validate({"modifications": rows, "layers": layers})

    def fill(bank: Bank) -> None:
        for placement in bank.placements():
            delta = placement.delta
            assert isinstance(delta, LowRank)
            change = changes.get((placement.modification.modifies, placement.name, placement.layer.number))
            _fill(delta, change)

    return Draft(spec, fill)


def _change(config: PeftConfig, parts: Parts, name: str, model: nn.Module, place: TargetModule) -> _Change | None:
    """Return the change at a place; None if a fused module changes nothing there."""
    expected = {A, B} | ({MAGNITUDE} if config.use_dora else set())
    if parts.keys() != expected or parts[A].ndim != 2 or parts[B].ndim != 2 or parts[A].shape[0] != parts[B].shape[1]:
        raise InputError(
            f"adapter_model.safetensors: module {name!r} has {', '.join(sorted(parts))}; expected matrices "
            f"{', '.join(sorted(expected))} of one rank. The file is damaged, or was written for another method."
        )
    module = model.get_submodule(place.path)
    weight_OI = rows_of(module.get_parameter("weight"), module, None)
    down_RI, up_OR, scale = parts[A], parts[B], factor(config, name, len(parts[A]))
    magnitude_O = parts.get(MAGNITUDE)
    shapes = [up_OR.shape[0], down_RI.shape[1], *(() if magnitude_O is None else magnitude_O.shape)]
    if shapes != [*weight_OI.shape, *weight_OI.shape[:1]][: len(shapes)]:
        raise InputError(
            f"adapter_model.safetensors: the tensors of module {name!r} are for {shapes[0]} outputs and {shapes[1]} inputs, "
            f"but this backbone has {weight_OI.shape[0]} and {weight_OI.shape[1]}: the adapter is for another base model."
        )
    if place.columns is None:
        return _Change(down_RI, up_OR, scale, magnitude_O)
    up_OR = up_OR[place.columns]
    magnitude_O = None if magnitude_O is None else magnitude_O[place.columns]
    used = up_OR.any(dim=0)
    if not used.any():
        # A magnitude that equals the norm of the weights, up to rounding, changes nothing.
        norm_O = torch.linalg.vector_norm(weight_OI[place.columns].float(), dim=1).cpu()
        if magnitude_O is None or torch.allclose(magnitude_O, norm_O, rtol=1e-6, atol=0.0):
            return None
        used[0] = True
    return _Change(down_RI[used], up_OR[:, used], scale, magnitude_O)


def _modification(config: PeftConfig, site: Site, found: dict[tuple[Site, str, int], _Change]) -> Modification:
    changes = [change for key, change in found.items() if key[0] == site]
    scales = {change.scale for change in changes}
    row: dict[str, Any] = {"form": "decomposed" if config.use_dora else "lowrank", "modifies": site}
    row |= {"insertion": "parallel", "rank": max(len(change.down_RI) for change in changes)}
    row |= {"dropout": config.lora_dropout, "composition": "scaled"}
    if len(scales) == 1:
        row["scale"] = scales.pop()
    elif not config.use_dora:
        row["composition"] = "learned"
    return Modification.model_validate(row)


def _fill(delta: LowRank, change: _Change | None) -> None:
    delta.up.weight.zero_()
    delta.down.weight.zero_()
    learned = delta.modification.composition == "learned"
    if learned:
        delta.scale.fill_(1.0 if change is None else change.scale)
    if change is None:
        return  # a fresh magnitude equals the norm of the weights
    rank = len(change.down_RI)
    folded = 1.0 if learned or delta.modification.scale == change.scale else change.scale
    put(delta.down.weight[:rank], change.down_RI, A)
    put(delta.up.weight[:, :rank], change.up_OR * folded if folded != 1.0 else change.up_OR, B)
    if isinstance(delta, Decomposed):
        assert change.magnitude_O is not None
        put(delta.magnitude, change.magnitude_O, MAGNITUDE)
