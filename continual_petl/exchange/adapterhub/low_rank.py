"""LoRA and IA3 of `adapters` 1.3, for both directions; both are a LoRAConfig (``methods/lora.py``).

If one fused module computes queries, keys and values (GPT-2), it has a single change: the A matrices of the projections that
are changed are stacked in this order, and so are their B matrices; a grouped convolution multiplies each B with its own A.
IA3 in `adapters` multiplies the output of the FFN's first projection before the non-linearity, and a bank after it. The two
are the same if the projection is the linear one of a gated FFN, or if the non-linearity is a ReLU and no factor is negative:
``relu(l x) = l relu(x)``.

Shape suffixes: O width of the outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from continual_petl.backbones.backbone import Backbone
from continual_petl.backbones.sites import Layer, Sites
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.forms.base import Site
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms import form_of
from continual_petl.banks.forms.base import Placement
from continual_petl.banks.forms.lowrank import LowRank
from continual_petl.banks.forms.projection import part_of
from continual_petl.banks.forms.rescale import FORM as RESCALE
from continual_petl.banks.forms.rescale import Rescale
from continual_petl.errors import InputError
from continual_petl.exchange.adapter_files import Number, Share, Size
from continual_petl.exchange.adapterhub.methods import (
    Flag,
    Method,
    Stacked,
    Take,
    left_out,
    placed,
    refused,
    same_options,
)
from continual_petl.exchange.subject import Subject

MATRICES: Mapping[Site, str] = {"query": "q", "key": "k", "value": "v"}
"""The names of projections in `adapters`, in the order in which a fused module of all three stores them."""


class LoraMethod(Method):
    """LoRA (composition_mode add) and IA3 (scale), with the defaults of `LoRAConfig`."""

    name = "lora"
    constant: ClassVar[Mapping[str, Any]] = {"use_gating": False, "use_dora": False, "dtype": None}
    architecture: Literal["lora"] = "lora"
    r: Size
    alpha: Number
    selfattn_lora: Flag = True
    intermediate_lora: Flag = False
    output_lora: Flag = False
    attn_matrices: Annotated[tuple[Literal["q", "k", "v"], ...], Field(max_length=3)] = ("q", "v")
    composition_mode: Literal["add", "scale"] = "add"
    dropout: Share = 0.0
    init_weights: Any = None

    @model_validator(mode="after")
    def _scale(self) -> LoraMethod:
        # In a fused module of queries, keys and values, `adapters` multiplies all three by alpha.
        if self.scales and (self.r, self.alpha, self.dropout) != (1, 1.0, 0.0):
            raise ValueError(
                f"composition_mode scale needs r 1, alpha 1 and no dropout; got r {self.r}, alpha {self.alpha}"
            )
        return self

    @property
    def scales(self) -> bool:
        """Whether it multiplies outputs (IA3)."""
        return self.composition_mode == "scale"

    @classmethod
    def of(cls, subject: Subject, rows: Sequence[Modification]) -> list[tuple[Method, Sequence[Modification]]]:
        """Return the one method of a bank's low-rank changes, or of its factors; see `Method.of`."""
        first, sites = rows[0], [row.modifies for row in rows]
        if (why := cls._why_not_written(subject, rows, sites)) is not None:
            raise refused(subject, why)
        if form_of(first) is RESCALE:
            options: dict[str, Any] = {"r": 1, "alpha": 1, "composition_mode": "scale", "init_weights": "ia3"}
        else:
            assert first.bottleneck is not None
            scale = float(first.scale) if first.composition == "scaled" else 1.0
            options = {"r": first.bottleneck, "alpha": scale * first.bottleneck, "dropout": first.dropout}
            options |= {"init_weights": "lora"}
        attention: Any = tuple(matrix for site, matrix in MATRICES.items() if site in sites)
        whole = cls.model_construct(
            selfattn_lora=bool(attention),
            intermediate_lora=bool({"ffn_in", "ffn_inner"} & {*sites}),
            output_lora="ffn_out" in sites,
            attn_matrices=attention or ("q", "v"),
            leave_out=left_out(subject),
            **options,
        )
        return [(whole, rows)]

    @staticmethod
    def _why_not_written(subject: Subject, rows: Sequence[Modification], sites: Sequence[Site]) -> str | None:
        places = ", ".join(sites)
        if form_of(rows[0]) is RESCALE:
            several = f"its factors are at {places}, and adapters has one vector at each place"
            return None if same_options(rows) else several
        if not same_options(rows):
            return "its low-rank changes have different ranks or factors, and adapters supports only one of each"
        if rows[0].composition == "learned" or not set(sites) <= {*MATRICES, "ffn_in", "ffn_out"}:
            return f"its low-rank changes are at {places} ({rows[0].composition})"
        if any(len(subject.bank.sites.into(layer)) > 1 for layer in subject.bank.layers) and "ffn_in" in sites:
            return "the FFN of this family has two first projections"
        return None

    def rows(self, backbone: Backbone) -> list[dict[str, Any]]:
        """Return low-rank changes or factors; see `Method.rows`."""
        sites: list[Site] = [s for s, matrix in MATRICES.items() if self.selfattn_lora and matrix in self.attn_matrices]
        if self.scales:
            sites += ["ffn_inner"] if self.intermediate_lora else []
            if not sites or "query" in sites or self.output_lora:
                raise InputError(
                    "adapter_config.json: key composition_mode: got 'scale', but a bank multiplies keys, values and the "
                    "FFN's inner states (attn_matrices k and v, intermediate_lora), and nothing else (q, output_lora)."
                )
            row: dict[str, Any] = {"form": "rescale", "insertion": "sequential", "composition": "multiply"}
            return [row | {"modifies": site} for site in sites]
        sites += ["ffn_in"] if self.intermediate_lora else []
        sites += ["ffn_out"] if self.output_lora else []
        if not sites:
            raise InputError("adapter_config.json: key attn_matrices: LoRA is applied nowhere.")
        row = {"form": "lowrank", "insertion": "parallel", "composition": "scaled", "rank": self.r}
        row |= {"scale": self.alpha / self.r, "dropout": self.dropout}
        return [row | {"modifies": site} for site in sites]

    def tensors(self, bank: Bank, rows: Sequence[Modification], name: str) -> Iterator[Stacked]:
        """Yield the matrices or factors of every module, those of a fused one in the order q, k, v; see `Method.tensors`."""
        sites, by_path = bank.sites, dict[str, list[Placement]]()
        for placement in placed(bank, rows):
            path, site = part_of(sites, placement)[0], placement.modification.modifies
            inner = inner_path(sites, placement.layer)
            if site == "ffn_in" and path != inner:
                # A bank changes both first projections of a gated FFN.
                assert isinstance(placement.delta, LowRank)
                yield Stacked(None, [placement.delta.down.weight, placement.delta.up.weight])
                continue
            by_path.setdefault(inner if site == "ffn_inner" else path, []).append(placement)
        order = [*MATRICES, "ffn_in", "ffn_inner", "ffn_out"]
        for path, placements in by_path.items():
            placements.sort(key=lambda placement: order.index(placement.modification.modifies))
            start = f"{path.removeprefix(sites.base)}.loras.{name}"
            inner_of = placements[0].layer if placements[0].name == "ffn_inner" else None
            matrices = [p.delta for p in placements if isinstance(p.delta, LowRank)]
            if self.scales:
                vectors = [p.delta.vector for p in placements if isinstance(p.delta, Rescale)]
                yield Stacked(f"{start}.lora_B", list(vectors), inner_of)
            else:
                yield Stacked(f"{start}.lora_A", [matrix.down.weight for matrix in matrices])
                yield Stacked(f"{start}.lora_B", [matrix.up.weight for matrix in matrices])

    def join(self, parts: list[Tensor]) -> Tensor:
        """Return factors as a column, matrices as they are; see `Method.join`."""
        return torch.cat(parts).unsqueeze(1) if self.scales else torch.cat(parts)

    def split(self, stacked: Stacked, backbone: Backbone, take: Take) -> Sequence[Tensor]:
        """Return factors without the dimension of the column; see `Method.split`."""

        def flat(path: str) -> Tensor:
            tensor = take(path)
            return tensor[:, 0] if self.scales and tensor.ndim == 2 and tensor.shape[1] == 1 else tensor

        return super().split(stacked, backbone, flat)

    def why_not(self, backbone: Backbone, stacked: Stacked, values: Sequence[Tensor]) -> str | None:
        """Return why factors of a layer's inner states cannot be applied to its first projection; see `Method.why_not`."""
        if stacked.inner is None:
            return None
        return _why_not_inner(backbone.sites, backbone.model.config, stacked.inner, values[0])


def _why_not_inner(sites: Sites, config: Any, layer: Layer, vector_O: Tensor) -> str | None:
    """Return why factors of a layer's inner states cannot be applied to its first projection; None if they can."""
    if len(sites.into(layer)) > 1:
        return None  # adapters multiplies the last one, which no non-linearity follows
    kind = _activation_of(config)
    if kind != "relu":
        return (
            f"adapters multiplies the FFN's states before their non-linearity ({kind}), and a bank after it, which is only "
            "the same for relu and for gated FFNs (rescale on ffn_inner)"
        )
    if bool((vector_O < 0).any()):
        return NEGATIVE
    return None


NEGATIVE = "some factors of the FFN's inner states are negative, and adapters multiplies before the relu"
"""The only reason that depends on the values of a bank."""


def _activation_of(config: Any) -> str:
    keys = ("dense_act_fn", "hidden_act", "activation", "activation_function")
    return next((str(getattr(config, key)) for key in keys if hasattr(config, key)), "unknown")


def inner_path(sites: Sites, layer: Layer) -> str:
    """Return the path of the first projection that `adapters` changes in a layer's FFN; in a gated FFN, the linear one."""
    return layer.full(sites.into(layer)[-1].path)
