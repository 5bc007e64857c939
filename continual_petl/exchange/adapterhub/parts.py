"""Shared by the methods of `adapters` 1.3: the content of their files, the supported models, and the error for a refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from continual_petl.backbones.sites import Layer, Sites
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.base import Placement
from continual_petl.exchange.formats import CannotExpressError, without_method
from continual_petl.exchange.subject import Subject

VERSION = "adapters.1.3.0"
_BERT = {"self": "attention.output.adapters", "ffn": "output.adapters"}
_BLOCKS = {"self": "attention_adapters.adapters", "cross": "cross_attention_adapters.adapters"}
_BLOCKS |= {"ffn": "output_adapters.adapters"}
_T5 = {"self": "layer.0.adapters", "cross": "layer.1.adapters", "ffn": "layer.{last}.adapters"}
PLACES: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "electra"), _BERT),
    **dict.fromkeys(("distilbert", "bart", "mbart", "gpt2"), _BLOCKS),
    **dict.fromkeys(("t5", "mt5"), _T5),
}
"""Paths of bottlenecks in a layer, for each model type."""


@dataclass(frozen=True)
class HubAdapter:
    """The content of an adapter's files: a method's configuration, and tensors keyed by their path in the base model."""

    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)


def place_of(sites: Sites, layer: Layer, name: str) -> str:
    """Return the path of a sub-layer's bottlenecks in the base model."""
    known = PLACES[sites.anatomy.family]
    at = "ffn" if name == "ffn" else "self" if name == layer.stack.attentions[0].name else "cross"
    return f"{layer.path.removeprefix(sites.base)}.{known[at].format(last=len(layer.stack.attentions))}"


def refused(subject: Subject, why: str) -> CannotExpressError:
    """Return the error for a bank that `adapters` has no method for."""
    return CannotExpressError(
        subject.plan.name,
        "adapters",
        without_method(why),
    )


def left_out(subject: Subject) -> list[int]:
    """Return the indices of the layers that a bank leaves unchanged."""
    inside = {layer.number for layer in subject.bank.layers}
    return [layer.number for layer in subject.bank.sites.layers if layer.number not in inside]


def placed(bank: Bank, rows: Sequence[Modification]) -> list[Placement]:
    """Return the placements that belong to the given modifications of a bank, layer by layer."""
    return [placement for placement in bank.placements() if placement.modification in rows]


def same_options(rows: Sequence[Modification]) -> bool:
    """Return whether modifications differ only in their sites, and no site occurs twice."""
    sites = {row.modifies for row in rows}
    plain = [row.model_copy(update={"modifies": rows[0].modifies}) for row in rows]
    return len(sites) == len(rows) and all(row == plain[0] for row in plain)
