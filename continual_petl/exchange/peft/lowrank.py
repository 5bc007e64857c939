"""LoRA and DoRA as `peft` 0.21 stores them.

peft has one low-rank change per module, ``y + (alpha / r) B A x``. Changes of the same module, such as those of GPT-2's
queries and values, are joined: their A matrices are stacked vertically and their B matrices horizontally, with zeros for
unchanged outputs. A factor that is learned or differs within a module is multiplied into B.

With ``use_dora`` every module has a magnitude. Outputs without one in the bank get the norm of their weights: peft divides
it by the same norm, so it has no effect.

Shape suffixes: I width of the input, O width of the module's output, R rank.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

from continual_petl.banks.forms.base import Placement
from continual_petl.banks.forms.decomposed import Decomposed
from continual_petl.banks.forms.lowrank import LowRank
from continual_petl.banks.forms.projection import part_of, rows_of
from continual_petl.exchange.formats import CannotExpressError
from continual_petl.exchange.peft.adapter import Adapter, Names, by_module
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
        tensors |= {f"{name}.lora_A.weight": down_RI, f"{name}.lora_B.weight": up_OR}
        if dora:
            _check_alone(subject, placements)
            norm_O = torch.linalg.vector_norm(weight_OI + scale * (up_OR @ down_RI), dim=1)
            for placement in placements:
                if isinstance(placement.delta, Decomposed):
                    norm_O[_outputs(subject, placement)] = placement.delta.magnitude
            tensors[f"{name}.lora_magnitude_vector"] = norm_O
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
