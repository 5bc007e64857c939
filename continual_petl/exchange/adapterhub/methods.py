"""The methods of `adapters` 1.3 that a bank can express: bottlenecks, LoRA, IA3 and prefixes, each for both directions.

A method states once what its options are called (with the defaults of `adapters`), which modifications of a bank they are,
and which parameters of the bank each of its tensors consists of; exports and imports both follow that.

Bottlenecks (``methods/modeling.py``) have frozen LayerNorms: double_seq_bn, seq_bn, par_bn. If those after attention and
after the FFN have different options, they become two configurations of a union.

LoRA and IA3 are both a LoRAConfig (``methods/lora.py``). If one fused module computes queries, keys and values (GPT-2), it
has a single change: the A matrices of the projections that are changed are stacked in this order, and so are their B
matrices; a grouped convolution multiplies each B with its own A. IA3 in `adapters` multiplies the output of the FFN's first
projection before the non-linearity, and a bank after it. The two are the same if the projection is the linear one of a gated
FFN, or if the non-linearity is a ReLU and no factor is negative: ``relu(l x) = l relu(x)``.

Prefixes (``methods/prefix_tuning.py``) are written flat: a pool in the base model holds, for each type of attention, the
vector ``control_trans`` of length ``L 2 T K``: for each virtual token, the keys of the first layer, its values, the keys of
the second layer, and so on. One that a network computes (a table and two linear layers) is read as the network's output, as
a bank's prefix is after training. With T5's relative positions, `adapters` counts the keys of a prefix as positions, which
shifts the positions of the text, so prefixes are refused.

Shape suffixes: O width of the outputs, L virtual tokens, T layers, K width of the keys of all heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor
from transformers import activations

from continual_petl._strict_model import StrictModel
from continual_petl.backbones.backbone import Backbone
from continual_petl.backbones.sites import Layer, Sites
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.forms.base import Site
from continual_petl.banks.config.spec import Activation, Modification
from continual_petl.banks.forms import form_of
from continual_petl.banks.forms.attention import Prefix
from continual_petl.banks.forms.base import Placement, key
from continual_petl.banks.forms.bottleneck import Bottleneck
from continual_petl.banks.forms.lowrank import LowRank
from continual_petl.banks.forms.projection import part_of
from continual_petl.banks.forms.rescale import FORM as RESCALE
from continual_petl.banks.forms.rescale import Rescale
from continual_petl.errors import InputError
from continual_petl.exchange.adapter_files import Text
from continual_petl.exchange.formats import CannotExpressError, without_method
from continual_petl.exchange.subject import Subject
from continual_petl.kind_registry import kind_of
from continual_petl.streams.encoding.tokenise_sources import room_for

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
MATRICES: Mapping[Site, str] = {"query": "q", "key": "k", "value": "v"}
"""The names of projections in `adapters`, in the order in which a fused module of all three stores them."""
DOWN, UP = "adapter_down.0", "adapter_up"
POOL = "prefix_tuning.prefix_tunings"
"""The path of all prefixes in the base model."""
CONTROL = "control_trans"

Take = Callable[[str], Tensor]
"""Returns the tensor at a path; raises `KeyError` or `InputError` if there is none."""
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Size = Annotated[int, Field(strict=True, ge=1, le=2**20)]
_Share = Annotated[float, Field(ge=0, lt=1)]
_Layers = Annotated[tuple[Annotated[int, Field(strict=True, ge=0)], ...], Field(max_length=10_000)]
_Flag = Annotated[bool, Field(strict=True)]


@dataclass(frozen=True)
class Stacked:
    """A tensor of an adapter, and the parameters of a bank that it consists of."""

    path: str | None
    """Its path in the base model; None if `adapters` has none for these parameters, which then are zero."""
    parts: list[Tensor]
    inner: Layer | None = None
    """The layer, for factors of the inner states of an FFN."""


class Method(StrictModel):
    """The options of a method; others are refused if they are set."""

    name: ClassVar[str]
    constant: ClassVar[Mapping[str, Any]] = {}
    """Further options that are written; they have no effect, or are off."""
    leave_out: _Layers = ()

    @classmethod
    def of(cls, subject: Subject, rows: Sequence[Modification]) -> list[tuple[Method, Sequence[Modification]]]:
        """Return the methods that modifications of one form become, each with its modifications.

        Args:
            subject: the task.
            rows: the modifications of this form.

        Raises:
            CannotExpressError: if `adapters` has no equivalent.
        """
        raise NotImplementedError

    def rows(self, backbone: Backbone) -> list[dict[str, Any]]:
        """Return the modifications that a method becomes.

        Raises:
            InputError: if a bank has no equivalent.
        """
        raise NotImplementedError

    def tensors(self, bank: Bank, rows: Sequence[Modification], name: str) -> Iterator[Stacked]:
        """Yield every tensor of the adapter with this name, and the parameters of these modifications that it stores."""
        raise NotImplementedError

    def written(self) -> dict[str, Any]:
        """Return the configuration in the format of `adapters`."""
        return self.model_dump(warnings=False) | dict(self.constant)

    def join(self, parts: list[Tensor]) -> Tensor:
        """Return the tensor that is stored for some parameters."""
        return torch.cat(parts)

    def split(self, stacked: Stacked, backbone: Backbone, take: Take) -> Sequence[Tensor]:
        """Return the value of each parameter in a stored tensor; the caller compares the shapes."""
        assert stacked.path is not None
        tensor = take(stacked.path)
        return tensor.tensor_split(len(stacked.parts)) if tensor.ndim else [tensor] * len(stacked.parts)

    def why_not(self, backbone: Backbone, stacked: Stacked, values: Sequence[Tensor]) -> str | None:
        """Return why one of the libraries cannot express these values of a tensor; None if both can."""
        return None


class BottleneckMethod(Method):
    """Bottlenecks, with the defaults of `BnConfig`."""

    name = "bottleneck"
    constant: ClassVar[Mapping[str, Any]] = {
        **dict.fromkeys(("ln_before", "ln_after", "adapter_residual_before_ln", "use_gating", "phm_layer"), False),
        **dict.fromkeys(("inv_adapter", "inv_adapter_reduction_factor")),
        # adapters applies dropout elsewhere; it does nothing in eval mode.
        **dict.fromkeys(("dropout", "stochastic_depth"), 0.0),
    }
    mh_adapter: _Flag
    output_adapter: _Flag
    reduction_factor: _Positive
    non_linearity: Text
    cross_adapter: _Flag = False
    is_parallel: _Flag = False
    scaling: _Number = 1.0
    original_ln_before: _Flag = False
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
        norm_first = any(layer.stack.norm_first for layer in subject.bank.layers)
        if first.activation not in ACTIVATIONS:
            raise refused(subject, f"adapters has no equivalent of the activation {first.activation}")
        if first.depth > 1 or first.input_norm or first.output_norm:
            raise refused(subject, "its bottlenecks have more than one hidden layer, or a LayerNorm")
        if first.composition == "learned":
            raise refused(subject, "its bottlenecks have learned scales")
        if first.insertion == "parallel" and (sites != {"ffn"} or norm_first):
            raise refused(
                subject,
                "parallel bottlenecks of adapters read different states, except on the FFN of a post-norm model",
            )
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

    def rows(self, backbone: Backbone) -> list[dict[str, Any]]:
        """Return bottlenecks; see `Method.rows`."""
        if (why := self._why_not(backbone)) is not None:
            raise InputError(f"adapter_config.json: {why}.")
        size = int(backbone.hidden_size // self.reduction_factor)
        if not 1 <= size <= backbone.hidden_size:
            raise InputError(
                f"adapter_config.json: key reduction_factor: got {self.reduction_factor}, which gives a size of {size}."
            )
        row: dict[str, Any] = {"form": "bottleneck", "bottleneck": size, "activation": self._activation()}
        row |= {"insertion": "parallel" if self.is_parallel else "sequential"}
        row |= {"composition": "add"} if self.scaling == 1.0 else {"composition": "scaled", "scale": self.scaling}
        row |= {"normalised_input": True} if self.original_ln_before and not self.is_parallel else {}
        sites = {"attention": self.mh_adapter or self.cross_adapter, "ffn": self.output_adapter}
        return [row | {"modifies": site} for site, present in sites.items() if present]

    def _why_not(self, backbone: Backbone) -> str | None:
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


class LoraMethod(Method):
    """LoRA (composition_mode add) and IA3 (scale), with the defaults of `LoRAConfig`."""

    name = "lora"
    constant: ClassVar[Mapping[str, Any]] = {"use_gating": False, "use_dora": False, "dtype": None}
    architecture: Literal["lora"] = "lora"
    r: _Size
    alpha: _Number
    selfattn_lora: _Flag = True
    intermediate_lora: _Flag = False
    output_lora: _Flag = False
    attn_matrices: Annotated[tuple[Literal["q", "k", "v"], ...], Field(max_length=3)] = ("q", "v")
    composition_mode: Literal["add", "scale"] = "add"
    dropout: _Share = 0.0
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
        if form_of(first) is RESCALE:
            if not same_options(rows):
                raise refused(
                    subject, f"its factors are at {', '.join(sites)}, and adapters has one vector at each place"
                )
            options: dict[str, Any] = {"r": 1, "alpha": 1, "composition_mode": "scale", "init_weights": "ia3"}
        else:
            if not same_options(rows):
                raise refused(
                    subject,
                    "its low-rank changes have different ranks or factors, and adapters supports only one of each",
                )
            if first.composition == "learned" or not set(sites) <= {*MATRICES, "ffn_in", "ffn_out"}:
                raise refused(subject, f"its low-rank changes are at {', '.join(sites)} ({first.composition})")
            if any(len(subject.bank.sites.into(layer)) > 1 for layer in subject.bank.layers) and "ffn_in" in sites:
                raise refused(subject, "the FFN of this family has two first projections")
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
        return "some factors of the FFN's inner states are negative, and adapters multiplies before the relu"
    return None


def depends_on_signs(subject: Subject) -> bool:
    """Return whether `adapters` can express a bank or not by the signs of its factors; see `LoraMethod.why_not`."""
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
        and _activation_of(subject.backbone.model.config) == "relu"
    )


def _activation_of(config: Any) -> str:
    keys = ("dense_act_fn", "hidden_act", "activation", "activation_function")
    return next((str(getattr(config, key)) for key in keys if hasattr(config, key)), "unknown")


class PrefixMethod(Method):
    """Prefixes, with the defaults of `PrefixTuningConfig`."""

    name = "prefix"
    # The size of the network that computes them, which a flat prefix does not have.
    constant: ClassVar[Mapping[str, Any]] = {"bottleneck_size": 512, "use_gating": False, "shared_gating": True}
    architecture: Literal["prefix_tuning"] = "prefix_tuning"
    prefix_length: _Size
    flat: _Flag = False
    encoder_prefix: _Flag = True
    cross_prefix: _Flag = True
    non_linearity: Text = "tanh"
    dropout: _Share = 0.0

    @classmethod
    def of(cls, subject: Subject, rows: Sequence[Modification]) -> list[tuple[Method, Sequence[Modification]]]:
        """Return the one method of a bank's prefixes; see `Method.of`."""
        first = rows[0]
        why = why_no_prefix(subject.backbone)
        # GPT-2's eager attention has a causal mask for the model's positions, in which the keys of a prefix count.
        room = int(getattr(subject.backbone.model.config, "n_positions", 0) or 0) - (first.bottleneck or 0)
        if subject.backbone.anatomy.family == "gpt2" and _longest(subject) > room:
            why = (
                f"with a prefix of {first.bottleneck}, adapters reads texts of up to {room} tokens on this backbone, and "
                f"this task's have up to {_longest(subject)} (backbone.max_length)"
            )
        if len(rows) > 1:
            why = "it has several prefixes at the same heads"
        elif first.composition != "gated":
            why = "adapters has no multi-head parallel adapter"
        if why is not None:
            raise refused(subject, why)
        assert first.bottleneck is not None
        method = cls.model_construct(
            prefix_length=first.bottleneck, flat=True, dropout=first.dropout, leave_out=left_out(subject)
        )
        return [(method, rows)]

    def rows(self, backbone: Backbone) -> list[dict[str, Any]]:
        """Return prefixes; see `Method.rows`."""
        if (why := why_no_prefix(backbone)) is not None:
            raise InputError(f"adapter_config.json: key config.architecture: got 'prefix_tuning', but {why}.")
        off = [flag for flag in ("encoder_prefix", "cross_prefix") if not getattr(self, flag)]
        if off and len(backbone.anatomy.stacks) > 1:
            raise InputError(
                f"adapter_config.json: key {off[0]}: got False, but a bank has prefixes in every attention module of its "
                "layers."
            )
        row = {"form": "attention", "modifies": "heads", "insertion": "parallel", "composition": "gated"}
        return [row | {"length": self.prefix_length, "dropout": self.dropout}]

    def tensors(self, bank: Bank, rows: Sequence[Modification], name: str) -> Iterator[Stacked]:
        """Yield the keys and values of each type of attention; see `Method.tensors`."""
        group: Any = bank.modifications[str(bank.spec.modifications.index(rows[0]))]
        by_place: dict[str, list[Tensor]] = {}
        for layer in bank.layers:
            for attention in layer.stack.attentions:
                prefix = group[key(layer)][attention.name]
                assert isinstance(prefix, Prefix)
                at = location_of(bank.sites, layer, attention.name)
                by_place.setdefault(at, []).extend((prefix.key, prefix.value))
        for at, parts in by_place.items():
            yield Stacked(f"{POOL}.{name}.{at}.{CONTROL}", parts)

    def join(self, parts: list[Tensor]) -> Tensor:
        """Return a flat vector: (L, 2 T, K), flattened; see `Method.join`."""
        return torch.stack(parts, dim=1).flatten()

    def split(self, stacked: Stacked, backbone: Backbone, take: Take) -> Sequence[Tensor]:
        """Return the keys and values of every layer; see `Method.split`."""
        assert stacked.path is not None
        path, num_heads = stacked.path.removesuffix(f".{CONTROL}"), int(backbone.model.config.num_attention_heads)
        try:
            states = prefix_states(self.model_dump(), path, len(stacked.parts) // 2, num_heads, take)
        except (KeyError, RuntimeError) as error:
            raise InputError(
                f"folder: the tensors of {path[:300]!r} do not have the shapes that adapter_config.json asks for "
                f"({str(error)[:300]}): the adapter belongs to another base model, or its two files do not belong together."
            ) from error
        return [part for pair in states for part in pair]


def _longest(subject: Subject) -> int:
    """Return the maximum number of tokens of a text, generated ones included."""
    plan, length = subject.plan, subject.max_length
    if not kind_of(plan).continues or plan.generation is None:
        return length
    source, _ = room_for("causal-lm", length, plan.max_target_length)
    return max(length, source + plan.generation.max_new_tokens)


def why_no_prefix(backbone: Backbone) -> str | None:
    """Return why `adapters` cannot express a bank's prefixes on a backbone; None if it can."""
    config: Any = backbone.model.config
    if backbone.anatomy.family == "t5":
        return "with relative positions (t5, mt5), adapters counts a prefix as positions, which shifts the text's positions"
    heads = int(config.num_attention_heads)
    if int(getattr(config, "decoder_attention_heads", heads)) != heads:
        return "adapters has prefixes only for encoders and decoders with the same number of heads"
    return None


def location_of(sites: Sites, layer: Layer, attention: str) -> str:
    """Return the name that the prefix pool of `adapters` uses for this type of attention."""
    if sites.anatomy.family == "distilbert":
        return "self"
    if attention != layer.stack.attentions[0].name:
        return "cross_prefix"
    encoder = len(sites.anatomy.stacks) > 1 and layer.stack == sites.anatomy.stacks[0]
    return "encoder_prefix" if encoder else "self_prefix"


def prefix_states(
    config: dict[str, Any], path: str, num_layers: int, num_heads: int, take: Take
) -> list[tuple[Tensor, Tensor]]:
    """Return the keys (L, K) and values (L, K) of every layer with one type of attention.

    Args:
        config: the configuration.
        path: the path of these prefixes in the pool.
        num_layers: number of layers.
        num_heads: number of heads.
        take: returns the tensor at a path.

    Raises:
        KeyError: if a tensor is missing or has the wrong shape.
    """
    if config["flat"]:
        control = take(f"{path}.{CONTROL}")
    else:
        into, out = ((take(f"{path}.{CONTROL}.{n}.weight"), take(f"{path}.{CONTROL}.{n}.bias")) for n in (0, 2))
        control = F.linear(activation(config["non_linearity"])(F.linear(take(f"{path}.wte.weight"), *into)), *out)
    try:
        # (L, 2 T, heads, K / heads), then (2 T, heads, L, K / heads)
        parts = control.reshape(config["prefix_length"], 2 * num_layers, num_heads, -1).permute(1, 2, 0, 3)
    except RuntimeError as error:
        raise KeyError(f"{path}.{CONTROL}") from error
    flat = [part.transpose(0, 1).flatten(1) for part in parts]
    return list(zip(flat[::2], flat[1::2], strict=True))


def activation(name: str) -> Any:
    """Return a non-linearity of `adapters` by its name."""
    name = name.lower()
    function: Any = F.leaky_relu if name == "leakyrelu" else activations.get_activation(name)  # type: ignore[no-untyped-call]
    return function


def place_of(sites: Sites, layer: Layer, name: str) -> str:
    """Return the path of a sub-layer's bottlenecks in the base model."""
    known = PLACES[sites.anatomy.family]
    at = "ffn" if name == "ffn" else "self" if name == layer.stack.attentions[0].name else "cross"
    return f"{layer.path.removeprefix(sites.base)}.{known[at].format(last=len(layer.stack.attentions))}"


def inner_path(sites: Sites, layer: Layer) -> str:
    """Return the path of the first projection that `adapters` changes in a layer's FFN; in a gated FFN, the linear one."""
    return layer.full(sites.into(layer)[-1].path)


def refused(subject: Subject, why: str) -> CannotExpressError:
    """Return the error for a bank that `adapters` has no method for."""
    return CannotExpressError(subject.plan.name, "adapters", without_method(why))


def left_out(subject: Subject) -> tuple[int, ...]:
    """Return the indices of the layers that a bank leaves unchanged."""
    inside = {layer.number for layer in subject.bank.layers}
    return tuple(layer.number for layer in subject.bank.sites.layers if layer.number not in inside)


def placed(bank: Bank, rows: Sequence[Modification]) -> list[Placement]:
    """Return the placements that belong to the given modifications of a bank, layer by layer."""
    return [placement for placement in bank.placements() if placement.modification in rows]


def same_options(rows: Sequence[Modification]) -> bool:
    """Return whether modifications differ only in their sites, and no site occurs twice."""
    sites = {row.modifies for row in rows}
    plain = [row.model_copy(update={"modifies": rows[0].modifies}) for row in rows]
    return len(sites) == len(rows) and all(row == plain[0] for row in plain)
