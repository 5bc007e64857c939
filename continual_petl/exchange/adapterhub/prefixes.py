"""Prefixes of `adapters` 1.3 (``methods/prefix_tuning.py``), for both directions; they are written flat.

A pool in the base model holds, for each type of attention, the vector ``control_trans`` of length ``L 2 T K``: for each
virtual token, the keys of the first layer, its values, the keys of the second layer, and so on. One that a network computes
(a table and two linear layers) is read as the network's output, as a bank's prefix is after training. With T5's relative
positions, `adapters` counts the keys of a prefix as positions, which shifts the positions of the text, so prefixes are
refused.

Shape suffixes: L virtual tokens, T layers, K width of the keys of all heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from continual_petl.backbones.backbone import Backbone
from continual_petl.backbones.sites import Layer, Sites
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.attention import Prefix
from continual_petl.banks.forms.base import key
from continual_petl.errors import InputError
from continual_petl.exchange.adapter_files import Share, Size, Text
from continual_petl.exchange.adapterhub.methods import Flag, Method, Stacked, Take, activation, left_out, refused
from continual_petl.exchange.subject import Subject
from continual_petl.kind_registry import kind_of
from continual_petl.streams.encoding.tokenise_sources import room_for

POOL = "prefix_tuning.prefix_tunings"
"""The path of all prefixes in the base model."""
CONTROL = "control_trans"


class PrefixMethod(Method):
    """Prefixes, with the defaults of `PrefixTuningConfig`."""

    name = "prefix"
    # The size of the network that computes them, which a flat prefix does not have.
    constant: ClassVar[Mapping[str, Any]] = {"bottleneck_size": 512, "use_gating": False, "shared_gating": True}
    architecture: Literal["prefix_tuning"] = "prefix_tuning"
    prefix_length: Size
    flat: Flag = False
    encoder_prefix: Flag = True
    cross_prefix: Flag = True
    non_linearity: Text = "tanh"
    dropout: Share = 0.0

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
