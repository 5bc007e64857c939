"""LoRA and DoRA as `peft` 0.21 stores them: from a bank, and as modifications of one.

peft has one low-rank change per module, ``y + (alpha / r) B A x``. Changes of the same module, such as those of GPT-2's
queries and values, are joined: their A matrices are stacked vertically and their B matrices horizontally, with zeros for
unchanged outputs. A factor that is learned or differs within a module is multiplied into B. With ``use_dora`` every module
has a magnitude. Outputs without one in the bank get the norm of their weights: peft divides it by the same norm, so it has
no effect.

The other way round, a bank has one rank and one set of layers for each type of projection, while peft may have different
ones for every module. Smaller ranks are padded with zeros, and projections that the adapter does not change get zero
matrices: both add exact zeros. Factors that differ become learned factors of the bank; a bank with magnitudes has no learned
factors, so there they are multiplied into B. In a fused module, every part gets the columns of B that are not zero for it,
with the corresponding rows of A; a part without such columns is left unchanged.

Shape suffixes: I width of the input, O width of the outputs, R rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.config.forms.base import Site
from continual_petl.banks.forms.base import Placement
from continual_petl.banks.forms.decomposed import Decomposed
from continual_petl.banks.forms.lowrank import LowRank
from continual_petl.banks.forms.projection import part_of, rows_of
from continual_petl.errors import InputError
from continual_petl.exchange.adapter_files import Adapter
from continual_petl.exchange.formats import CannotExpressError
from continual_petl.exchange.imported import Draft, put
from continual_petl.exchange.peft.config import PeftConfig, factor
from continual_petl.exchange.peft.names import (
    LOW_RANK,
    MAGNITUDE,
    A,
    B,
    Changed,
    Names,
    TargetModule,
    by_module,
    changed_targets,
    draft_of,
)
from continual_petl.exchange.subject import Subject


@torch.no_grad()
def low_rank(subject: Subject, names: Names) -> Adapter:
    """Return the low-rank changes of a bank.

    Args:
        subject: a task whose bank has no other changes of projections.
        names: names of modules in the model that peft wraps.

    Raises:
        InputError: if a projection has a change with a magnitude and another change.
    """
    model, found = subject.backbone.model, by_module(subject)
    dora = any(isinstance(p.delta, Decomposed) for placements in found.values() for p in placements)
    tensors: dict[str, Tensor] = {}
    ranks, alphas = dict[str, int](), dict[str, float]()
    for path, placements in found.items():
        module, name = model.get_submodule(path), names.of(path)
        weight_OI = rows_of(module.get_parameter("weight"), module, None).float()
        down_RI, up_OR, scale = _joined(subject, placements, len(weight_OI))
        ranks[name], alphas[name] = len(down_RI), scale * len(down_RI)
        tensors |= {f"{name}.{A}": down_RI, f"{name}.{B}": up_OR}
        if dora:
            _check_alone(subject, placements)
            norm_O = torch.linalg.vector_norm(weight_OI + scale * (up_OR @ down_RI), dim=1)
            for placement in placements:
                if isinstance(placement.delta, Decomposed):
                    norm_O[_outputs(subject, placement)] = placement.delta.magnitude
            tensors[f"{name}.{MAGNITUDE}"] = norm_O
    rank, alpha = (Counter(values.values()).most_common(1)[0][0] for values in (ranks, alphas))
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": _whole(alpha),
        "rank_pattern": {name: r for name, r in ranks.items() if r != rank},
        "alpha_pattern": {name: _whole(a) for name, a in alphas.items() if a != alpha},
        "target_modules": names.shortest(ranks),
        "fan_in_fan_out": any(hasattr(model.get_submodule(path), "nf") for path in found),
        "use_dora": dora,
        "bias": "none",
        "lora_dropout": subject.plan.bank.modifications[0].dropout,
    }
    return Adapter(config, tensors)


def _joined(subject: Subject, placements: list[Placement], num_outputs: int) -> tuple[Tensor, Tensor, float]:
    """Return A (R, I), B (O, R) and the factor of one module."""
    deltas = [placement.delta for placement in placements]
    scales = {d.modification.scale if d.modification.composition == "scaled" else None for d in deltas}
    scale = scales.pop() if len(scales) == 1 else None
    downs, ups = list[Tensor](), list[Tensor]()
    for placement in placements:
        delta = placement.delta
        assert isinstance(delta, LowRank)
        up_OR = delta.up.weight.new_zeros(num_outputs, delta.up.weight.shape[1])
        up_OR[_outputs(subject, placement)] = delta.up.weight * (delta.factor() if scale is None else 1.0)
        downs.append(delta.down.weight)
        ups.append(up_OR)
    return torch.cat(downs), torch.cat(ups, dim=1), 1.0 if scale is None else scale


def _check_alone(subject: Subject, placements: list[Placement]) -> None:
    """Raise `InputError` if one of the changes has a magnitude, and another one changes the same projection."""
    if not any(isinstance(placement.delta, Decomposed) for placement in placements):
        return
    places = Counter(
        (placement.layer.number, placement.modification.modifies, placement.name) for placement in placements
    )
    if max(places.values()) > 1:
        why = (
            "its bank changes one projection twice, at least once with a magnitude (decomposed), and peft supports one "
            "change per module"
        )
        raise CannotExpressError(subject.plan.name, "peft", why)


def _outputs(subject: Subject, placement: Placement) -> slice | list[int]:
    """Return the outputs of a module that a placement changes."""
    columns = part_of(subject.bank.sites, placement)[1]
    return slice(None) if columns is None else columns


def _whole(alpha: float) -> int | float:
    """Return a whole number as an int, as peft's users write it."""
    return int(alpha) if alpha == int(alpha) else alpha


@dataclass(frozen=True)
class _Change:
    """The change at one place."""

    down_RI: Tensor
    up_OR: Tensor
    scale: float
    magnitude_O: Tensor | None


@torch.no_grad()
def read_low_rank(config: PeftConfig, changed: Changed, names: Names, backbone: Backbone) -> Draft:
    """Return the low-rank changes of an adapter.

    Args:
        config: its options.
        changed: its tensors, by module.
        names: names of modules in the model that peft wraps.
        backbone: the backbone.

    Raises:
        InputError: if a module is not a projection, or its tensors have the wrong shape.
    """
    sites, changes = backbone.sites, dict[tuple[Site, str, int], _Change]()
    what = "low-rank changes of the projections in the layers"
    for target, parts in changed_targets(changed, names, sites, LOW_RANK, what):
        if (change := _change(config, parts, names.of(target.path), backbone.model, target)) is not None:
            changes[target.site, target.name, target.layer.number] = change
    return draft_of(changes, LOW_RANK, sites, partial(_options, config), _fill)


def _change(
    config: PeftConfig, parts: Mapping[str, Tensor], name: str, model: nn.Module, place: TargetModule
) -> _Change | None:
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


def _options(config: PeftConfig, changes: list[_Change]) -> dict[str, Any]:
    scales = {change.scale for change in changes}
    row: dict[str, Any] = {"form": "decomposed" if config.use_dora else "lowrank"}
    row |= {"insertion": "parallel", "rank": max(len(change.down_RI) for change in changes)}
    row |= {"dropout": config.lora_dropout, "composition": "scaled"}
    if len(scales) == 1:
        row["scale"] = scales.pop()
    elif not config.use_dora:
        row["composition"] = "learned"
    return row


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
