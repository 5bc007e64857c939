"""Bottlenecks of `adapters` 1.3 (``methods/modeling.py``), for both directions: double_seq_bn, seq_bn and par_bn.

They have frozen LayerNorms. If those after attention and after the FFN have different options, they become two
configurations of a union.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from continual_petl.backbones.backbone import Backbone
from continual_petl.backbones.sites import Layer, Sites
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import Activation, Modification
from continual_petl.banks.forms.bottleneck import Bottleneck
from continual_petl.errors import InputError
from continual_petl.exchange.adapter_files import Number, Text
from continual_petl.exchange.adapterhub.methods import (
    PLACES,
    Flag,
    Method,
    Stacked,
    left_out,
    placed,
    refused,
    same_options,
)
from continual_petl.exchange.subject import Subject

ACTIVATIONS: Mapping[str, str] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "silu": "swish",
    "tanh": "tanh",
    "leaky_relu": "leakyrelu",
    "sigmoid": "sigmoid",
}
"""The names of non-linearities in `adapters`."""
DOWN, UP = "adapter_down.0", "adapter_up"
_Factor = Annotated[float, Field(ge=0.5, allow_inf_nan=False)]
"""A bottleneck is never larger than what it reads; a size that no integer holds is not computed."""


class BottleneckMethod(Method):
    """Bottlenecks, with the defaults of `BnConfig`."""

    name = "bottleneck"
    constant: ClassVar[Mapping[str, Any]] = {
        **dict.fromkeys(("ln_before", "ln_after", "adapter_residual_before_ln", "use_gating", "phm_layer"), False),
        **dict.fromkeys(("inv_adapter", "inv_adapter_reduction_factor")),
        # adapters applies dropout elsewhere; it does nothing in eval mode.
        **dict.fromkeys(("dropout", "stochastic_depth"), 0.0),
    }
    mh_adapter: Flag
    output_adapter: Flag
    reduction_factor: _Factor
    non_linearity: Text
    cross_adapter: Flag = False
    is_parallel: Flag = False
    scaling: Number = 1.0
    original_ln_before: Flag = False
    original_ln_after: Literal[True] = True
    residual_before_ln: Literal[True] = True
    init_weights: Any = None

    @classmethod
    def of(cls, subject: Subject, rows: Sequence[Modification]) -> list[tuple[Method, Sequence[Modification]]]:
        """Return one method per set of options; see `Method.of`."""
        sites = [row.modifies for row in rows]
        if len(set(sites)) < len(sites) or not set(sites) <= {"attention", "ffn"}:
            raise refused(subject, f"its bottlenecks are at {', '.join(sites)}")
        groups = [rows] if same_options(rows) else [[row] for row in rows]
        return [(cls._one(subject, group), group) for group in groups]

    @classmethod
    def _one(cls, subject: Subject, rows: Sequence[Modification]) -> Method:
        first, sites = rows[0], {row.modifies for row in rows}
        if (why := cls._why_not_written(subject, first, sites)) is not None:
            raise refused(subject, why)
        widths = {subject.bank.sites.hidden_width(layer) for layer in subject.bank.layers}
        assert first.bottleneck is not None
        return cls.model_construct(
            mh_adapter="attention" in sites,
            output_adapter="ffn" in sites,
            cross_adapter="attention" in sites,
            reduction_factor=_reduction(widths.pop(), first.bottleneck),
            non_linearity=ACTIVATIONS[first.activation],
            is_parallel=first.insertion == "parallel",
            scaling=float(first.scale) if first.composition == "scaled" else 1.0,
            original_ln_before=first.normalised_input,
            init_weights="mam_adapter" if first.init == "lora" else first.init,
            leave_out=left_out(subject),
        )

    @staticmethod
    def _why_not_written(subject: Subject, first: Modification, sites: Collection[str]) -> str | None:
        if first.activation not in ACTIVATIONS:
            return f"adapters has no equivalent of the activation {first.activation}"
        if first.depth > 1 or first.input_norm or first.output_norm:
            return "its bottlenecks have more than one hidden layer, or a LayerNorm"
        if first.composition == "learned":
            return "its bottlenecks have learned scales"
        norm_first = any(layer.stack.norm_first for layer in subject.bank.layers)
        if first.insertion == "parallel" and (sites != {"ffn"} or norm_first):
            return "parallel bottlenecks of adapters read different states, except on the FFN of a post-norm model"
        return None

    def rows(self, backbone: Backbone) -> list[dict[str, Any]]:
        """Return bottlenecks; see `Method.rows`."""
        size = int(backbone.hidden_size // self.reduction_factor)
        if (why := self._why_not_read(backbone, size)) is not None:
            raise InputError(f"adapter_config.json: {why}.")
        row: dict[str, Any] = {"form": "bottleneck", "bottleneck": size, "activation": self._activation()}
        row |= {"insertion": "parallel" if self.is_parallel else "sequential"}
        row |= {"composition": "add"} if self.scaling == 1.0 else {"composition": "scaled", "scale": self.scaling}
        row |= {"normalised_input": True} if self.original_ln_before and not self.is_parallel else {}
        sites = {"attention": self.mh_adapter or self.cross_adapter, "ffn": self.output_adapter}
        return [row | {"modifies": site} for site, present in sites.items() if present]

    def _why_not_read(self, backbone: Backbone, size: int) -> str | None:
        norm_first = any(layer.stack.norm_first for layer in backbone.sites.layers)
        attention = self.mh_adapter or self.cross_adapter
        if self._activation() is None:
            return f"a bank has no equivalent of the activation {self.non_linearity!r} (non_linearity)"
        if self.is_parallel and (attention or norm_first):
            return (
                "parallel bottlenecks (is_parallel) read different states from a bank's, except on the FFN of a post-norm "
                "model"
            )
        if self.original_ln_before and not self.is_parallel and (attention or norm_first):
            return "a bank has bottlenecks that read normalised sums (original_ln_before) only on the FFN of post-norm models"
        if not (attention or self.output_adapter):
            return "mh_adapter, cross_adapter and output_adapter are all off"
        if not 1 <= size <= backbone.hidden_size:
            return f"key reduction_factor: got {self.reduction_factor}, which gives a size of {size}"
        return None

    def _activation(self) -> Activation | None:
        """Return the non-linearity under its name in a bank; None if a bank has no equivalent."""
        known: Any = {theirs: ours for ours, theirs in ACTIVATIONS.items()} | {"silu": "silu"}
        name: Activation | None = known.get(self.non_linearity.lower())
        return name

    def tensors(self, bank: Bank, rows: Sequence[Modification], name: str) -> Iterator[Stacked]:
        """Yield weight and bias of every linear layer; see `Method.tensors`."""
        for placement in placed(bank, rows):
            delta, layer = placement.delta, placement.layer
            assert isinstance(delta, Bottleneck)
            # A bank covers all attention modules of a layer.
            present = {"ffn": True, layer.stack.attentions[0].name: self.mh_adapter}
            path = f"{place_of(bank.sites, layer, placement.name)}.{name}"
            for part, linear in ((DOWN, delta.down), (UP, delta.up)):
                for leaf, parameter in linear.named_parameters():
                    stored = present.get(placement.name, self.cross_adapter)
                    yield Stacked(f"{path}.{part}.{leaf}" if stored else None, [parameter])


def _reduction(width: int, size: int) -> float:
    """Return a factor for which ``int(width // factor)`` is the size."""
    factor = width / size
    while int(width // factor) != size:
        factor = math.nextafter(factor, 0.0)
    return int(factor) if factor == int(factor) else factor


def place_of(sites: Sites, layer: Layer, name: str) -> str:
    """Return the path of a sub-layer's bottlenecks in the base model."""
    known = PLACES[sites.anatomy.family]
    at = "ffn" if name == "ffn" else "self" if name == layer.stack.attentions[0].name else "cross"
    return f"{layer.path.removeprefix(sites.base)}.{known[at].format(last=len(layer.stack.attentions))}"
