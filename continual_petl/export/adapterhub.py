"""A bank as an adapter of `adapters` 1.3: bottlenecks with frozen LayerNorms (double_seq_bn, seq_bn, par_bn), and LoRA.

Read in ``adapters`` 1.3.0: ``methods/modeling.py``, ``methods/lora.py`` and the paths of the models below. Its folder has
``adapter_config.json`` and ``adapter.safetensors``, which ``load_adapter(folder, use_safetensors=True)`` loads. The head is
a file of its own, since a bank's pooling need not be that of a class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from continual_petl.backbones.sites import Layer, Sites
from continual_petl.banks.config.forms.base import Site
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.bottleneck import Bottleneck
from continual_petl.banks.forms.lowrank import LowRank
from continual_petl.banks.forms.projection import part_of
from continual_petl.errors import InputError
from continual_petl.export.subject import Subject

VERSION = "adapters.1.3.0"
ACTIVATIONS: Mapping[str, str] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "silu": "swish",
    "tanh": "tanh",
    "leaky_relu": "leakyrelu",
    "sigmoid": "sigmoid",
}
"""The names of non-linearities there."""
_MATRICES: Mapping[Site, str] = {"query": "q", "key": "k", "value": "v"}
_BERT = {"self": "attention.output.adapters", "ffn": "output.adapters"}
_BLOCKS = {"self": "attention_adapters.adapters", "cross": "cross_attention_adapters.adapters"}
_BLOCKS |= {"ffn": "output_adapters.adapters"}
_T5 = {"self": "layer.0.adapters", "cross": "layer.1.adapters", "ffn": "layer.{last}.adapters"}
PLACES: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "electra"), _BERT),
    **dict.fromkeys(("distilbert", "bart", "mbart", "gpt2"), _BLOCKS),
    **dict.fromkeys(("t5", "mt5"), _T5),
}
"""Where a layer has its bottlenecks, by model type."""


@dataclass(frozen=True)
class HubAdapter:
    """What `adapters` stores: the configuration of the method, and tensors by their paths in the base model."""

    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)


def adapterhub_adapter(subject: Subject, name: str) -> HubAdapter:
    """Return a bank as an adapter.

    Args:
        subject: the task.
        name: the adapter's name, which is part of the paths.

    Raises:
        InputError: if `adapters` has no such method, or not for this family.
    """
    rows, family = subject.plan.bank.modifications, str(subject.backbone.model.config.model_type)
    if family not in PLACES:
        raise _refused(subject, f"its model type {family!r} is not one of {', '.join(PLACES)}")
    if subject.plan.bank.layernorms == "own":
        raise _refused(subject, "its bank has LayerNorms of its own, and adapters keeps those of the model")
    forms = {row.form for row in rows}
    if forms == {"bottleneck"}:
        return _bottlenecks(subject, name, rows)
    if forms == {"lowrank"}:
        return _low_rank(subject, name, rows)
    raise _refused(subject, f"its bank has {' and '.join(sorted(forms)) or 'nothing but a head'}")


def _refused(subject: Subject, why: str) -> InputError:
    return InputError(
        f"format: got 'adapters' for task {subject.plan.name!r}, but {why}. Bottlenecks after or beside a sub-layer "
        "with frozen LayerNorms, and LoRA of one rank and factor, can be exported. Use format 'merged' or 'peft' if these "
        "can express it, or Run.predict."
    )


def _left_out(subject: Subject) -> list[int]:
    inside = {layer.number for layer in subject.bank.layers}
    return [layer.number for layer in subject.bank.sites.layers if layer.number not in inside]


def _bottlenecks(subject: Subject, name: str, rows: tuple[Modification, ...]) -> HubAdapter:
    first, sites = rows[0], {row.modifies for row in rows}
    if len(sites) < len(rows) or not sites <= {"attention", "ffn"}:
        raise _refused(subject, f"its bottlenecks are at {', '.join(row.modifies for row in rows)}")
    if any(row.model_copy(update={"modifies": "ffn"}) != first.model_copy(update={"modifies": "ffn"}) for row in rows):
        raise _refused(subject, "its bottlenecks have different options, and adapters has one set of them")
    parallel = first.insertion == "parallel"
    why = None
    if first.activation not in ACTIVATIONS:
        why = f"adapters has no activation like {first.activation}"
    elif first.depth > 1 or first.input_norm or first.output_norm:
        why = "its bottlenecks have more layers, or a LayerNorm"
    elif first.composition == "learned":
        why = "the factors of its layers are learned"
    elif parallel and (sites != {"ffn"} or any(layer.stack.norm_first for layer in subject.bank.layers)):
        why = "a parallel bottleneck reads something else there than on the FFN of a model that normalises after it"
    if why is not None:
        raise _refused(subject, why)
    widths = {subject.bank.sites.hidden_width(layer) for layer in subject.bank.layers}
    assert first.bottleneck is not None
    config: dict[str, Any] = {
        "mh_adapter": "attention" in sites,
        "output_adapter": "ffn" in sites,
        "cross_adapter": "attention" in sites,
        "reduction_factor": _reduction(widths.pop(), first.bottleneck),
        "non_linearity": ACTIVATIONS[first.activation],
        "is_parallel": parallel,
        "scaling": float(first.scale) if first.composition == "scaled" else 1.0,
        "original_ln_before": first.normalised_input,
        "original_ln_after": True,
        "ln_before": False,
        "ln_after": False,
        "residual_before_ln": True,
        "adapter_residual_before_ln": False,
        "use_gating": False,
        "phm_layer": False,
        "init_weights": "mam_adapter" if first.init == "lora" else first.init,
        "inv_adapter": None,
        "inv_adapter_reduction_factor": None,
        "leave_out": _left_out(subject),
        # Dropout is elsewhere there, and does nothing in eval mode.
        "dropout": 0.0,
        "stochastic_depth": 0.0,
    }
    tensors: dict[str, Tensor] = {}
    for placement in subject.bank.placements():
        delta = placement.delta
        assert isinstance(delta, Bottleneck)
        path = f"{place_of(subject.bank.sites, placement.layer, placement.name)}.{name}"
        tensors |= {f"{path}.adapter_down.0.weight": delta.down.weight, f"{path}.adapter_down.0.bias": delta.down.bias}
        tensors |= {f"{path}.adapter_up.weight": delta.up.weight, f"{path}.adapter_up.bias": delta.up.bias}
    return HubAdapter(config, tensors)


def place_of(sites: Sites, layer: Layer, name: str) -> str:
    """Return the path of a sub-layer's bottlenecks in the base model."""
    known = PLACES[sites.anatomy.family]
    at = "ffn" if name == "ffn" else "self" if name == layer.stack.attentions[0].name else "cross"
    return f"{layer.path.removeprefix(sites.base)}.{known[at].format(last=len(layer.stack.attentions))}"


def _reduction(width: int, size: int) -> float:
    """Return a factor for which ``int(width // factor)`` is the size."""
    factor = width / size
    while int(width // factor) != size:
        factor = math.nextafter(factor, 0.0)
    return int(factor) if factor == int(factor) else factor


def _low_rank(subject: Subject, name: str, rows: tuple[Modification, ...]) -> HubAdapter:
    first, sites = rows[0], [row.modifies for row in rows]
    same = {"modifies": "query"}
    if any(row.model_copy(update=same) != first.model_copy(update=same) for row in rows) or len(set(sites)) < len(
        sites
    ):
        raise _refused(subject, "its low-rank changes have different ranks or factors, and adapters has one of each")
    if first.composition == "learned" or not set(sites) <= {*_MATRICES, "ffn_in", "ffn_out"}:
        raise _refused(subject, f"its low-rank changes are at {', '.join(sites)} ({first.composition})")
    placed = [(placement, *part_of(subject.bank.sites, placement)) for placement in subject.bank.placements()]
    if any(columns is not None for _, _, columns in placed):
        raise _refused(
            subject, "queries, keys and values are one module in this family, which adapters stores in its own way"
        )
    if any(len(subject.bank.sites.into(layer)) > 1 for layer in subject.bank.layers) and "ffn_in" in sites:
        raise _refused(subject, "the FFN of this family has two first projections")
    assert first.bottleneck is not None
    scale = float(first.scale) if first.composition == "scaled" else 1.0
    attention = [_MATRICES[site] for site in sites if site in _MATRICES]
    config: dict[str, Any] = {
        "architecture": "lora",
        "selfattn_lora": bool(attention),
        "intermediate_lora": "ffn_in" in sites,
        "output_lora": "ffn_out" in sites,
        "attn_matrices": attention or ["q", "v"],
        "leave_out": _left_out(subject),
        "r": first.bottleneck,
        "alpha": scale * first.bottleneck,
        "dropout": first.dropout,
        "composition_mode": "add",
        "init_weights": "lora",
        "use_gating": False,
        "use_dora": False,
        "dtype": None,
    }
    tensors: dict[str, Tensor] = {}
    for placement, path, _ in placed:
        delta = placement.delta
        assert isinstance(delta, LowRank)
        start = f"{path.removeprefix(subject.bank.sites.base)}.loras.{name}"
        tensors |= {f"{start}.lora_A": delta.down.weight, f"{start}.lora_B": delta.up.weight}
    return HubAdapter(config, tensors)
