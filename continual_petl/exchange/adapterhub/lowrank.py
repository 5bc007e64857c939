"""LoRA and IA3 as `adapters` 1.3 stores them, both as a LoRAConfig (``methods/lora.py``).

If one fused module computes queries, keys and values (GPT-2), it has a single change: the A matrices of the projections that
are changed are stacked in this order, and so are their B matrices; a grouped convolution multiplies each B with its own A.

IA3 in `adapters` multiplies the output of the FFN's first projection before the non-linearity, and a bank after it. The two
are the same if the projection is the linear one of a gated FFN, or if the non-linearity is a ReLU and no factor is negative:
``relu(l x) = l relu(x)``.

Shape suffixes: O width of the outputs, I width of the input, R rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from continual_petl.backbones.sites import Layer, Sites
from continual_petl.banks.config.forms.base import Site
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.base import Placement
from continual_petl.banks.forms.lowrank import LowRank
from continual_petl.banks.forms.projection import part_of
from continual_petl.banks.forms.rescale import Rescale
from continual_petl.exchange.adapterhub.parts import PLACES, HubAdapter, left_out, placed, refused, same_options
from continual_petl.exchange.subject import Subject

MATRICES: Mapping[Site, str] = {"query": "q", "key": "k", "value": "v"}
"""The names of projections in `adapters`, in the order in which a fused module of all three stores them."""
_INNER: tuple[Site, ...] = ("ffn_in", "ffn_inner")


def low_rank(subject: Subject, name: str, rows: Sequence[Modification]) -> list[HubAdapter]:
    """Return a bank's LoRA; see `continual_petl.exchange.adapterhub.bottleneck.bottlenecks`."""
    first, sites = rows[0], [row.modifies for row in rows]
    if not same_options(rows):
        raise refused(
            subject, "its low-rank changes have different ranks or factors, and adapters supports only one of each"
        )
    if first.composition == "learned" or not set(sites) <= {*MATRICES, "ffn_in", "ffn_out"}:
        raise refused(subject, f"its low-rank changes are at {', '.join(sites)} ({first.composition})")
    if any(len(subject.bank.sites.into(layer)) > 1 for layer in subject.bank.layers) and "ffn_in" in sites:
        raise refused(subject, "the FFN of this family has two first projections")
    assert first.bottleneck is not None
    scale = float(first.scale) if first.composition == "scaled" else 1.0
    options: dict[str, Any] = {"r": first.bottleneck, "alpha": scale * first.bottleneck, "dropout": first.dropout}
    options |= {"composition_mode": "add", "init_weights": "lora"}
    tensors: dict[str, Tensor] = {}
    for start, placements in _by_module(subject, name, rows).items():
        deltas = [placement.delta for placement in placements]
        downs_RI = [delta.down.weight for delta in deltas if isinstance(delta, LowRank)]
        ups_OR = [delta.up.weight for delta in deltas if isinstance(delta, LowRank)]
        tensors |= {f"{start}.lora_A": torch.cat(downs_RI), f"{start}.lora_B": torch.cat(ups_OR)}
    return [HubAdapter(_config(subject, sites, options), tensors)]


def factors(subject: Subject, name: str, rows: Sequence[Modification]) -> list[HubAdapter]:
    """Return a bank's IA3; see `continual_petl.exchange.adapterhub.bottleneck.bottlenecks`."""
    sites = [row.modifies for row in rows]
    if not same_options(rows):
        raise refused(subject, f"its factors are at {', '.join(sites)}, and adapters has one vector at each place")
    tensors: dict[str, Tensor] = {}
    for start, placements in _by_module(subject, name, rows).items():
        vectors_O: list[Tensor] = [p.delta.vector for p in placements if isinstance(p.delta, Rescale)]
        if placements[0].name == "ffn_inner":
            why = why_not_inner(subject.bank.sites, subject.backbone.model.config, placements[0].layer, vectors_O[0])
            if why is not None:
                raise refused(subject, why)
        tensors[f"{start}.lora_B"] = torch.cat(vectors_O).unsqueeze(1)
    options = {"r": 1, "alpha": 1, "dropout": 0.0, "composition_mode": "scale", "init_weights": "ia3"}
    return [HubAdapter(_config(subject, sites, options), tensors)]


def why_not_inner(sites: Sites, config: Any, layer: Layer, vector_O: Tensor) -> str | None:
    """Return why factors of a layer's inner states cannot be applied to its first projection; None if they can."""
    if len(sites.into(layer)) > 1:
        return None  # adapters multiplies the last one, which no non-linearity follows
    kind = _activation(config)
    if kind != "relu":
        return (
            f"adapters multiplies the FFN's states before their non-linearity ({kind}), and a bank after it, which is only "
            "the same for relu and for gated FFNs (rescale on ffn_inner)"
        )
    if bool((vector_O < 0).any()):
        return "some factors of the FFN's inner states are negative, and adapters multiplies before the relu"
    return None


def depends_on_signs(subject: Subject) -> bool:
    """Return whether it depends on the signs of a bank's factors whether `adapters` can express it; see `why_not_inner`."""
    sites, spec = subject.bank.sites, subject.plan.bank
    placements = subject.bank.placements()
    inner = any(placement.name == "ffn_inner" for placement in placements)
    known = str(subject.backbone.model.config.model_type) in PLACES
    factors = all(isinstance(placement.delta, Rescale) for placement in placements)
    only = factors and spec.layernorms == "frozen" and not spec.fuse
    return (
        (inner and known and only)
        and same_options(spec.modifications)
        and any(len(sites.into(layer)) == 1 for layer in subject.bank.layers)
        and _activation(subject.backbone.model.config) == "relu"
    )


def _activation(config: Any) -> str:
    keys = ("dense_act_fn", "hidden_act", "activation", "activation_function")
    return next((str(getattr(config, key)) for key in keys if hasattr(config, key)), "unknown")


def inner_path(sites: Sites, layer: Layer) -> str:
    """Return the path of the first projection that `adapters` changes in a layer's FFN; in a gated FFN, the linear one."""
    return layer.full(sites.into(layer)[-1].path)


def _by_module(subject: Subject, name: str, rows: Sequence[Modification]) -> dict[str, list[Placement]]:
    """Return changes keyed by the path of their module; changes of one module are in the order q, k, v."""
    sites, by_name = subject.bank.sites, dict[str, list[Placement]]()
    order = list(MATRICES)
    for placement in placed(subject.bank, rows):
        inner = placement.name in _INNER
        path = inner_path(sites, placement.layer) if inner else part_of(sites, placement)[0]
        by_name.setdefault(f"{path.removeprefix(sites.base)}.loras.{name}", []).append(placement)
    for placements in by_name.values():
        if len(placements) > 1:
            placements.sort(key=lambda placement: order.index(placement.modification.modifies))
    return by_name


def _config(subject: Subject, sites: Sequence[Site], options: dict[str, Any]) -> dict[str, Any]:
    attention = [matrix for site, matrix in MATRICES.items() if site in sites]
    return {
        "architecture": "lora",
        "selfattn_lora": bool(attention),
        "intermediate_lora": bool({*_INNER} & {*sites}),
        "output_lora": "ffn_out" in sites,
        "attn_matrices": attention or ["q", "v"],
        "leave_out": left_out(subject),
        "use_gating": False,
        "use_dora": False,
        "dtype": None,
    } | options
