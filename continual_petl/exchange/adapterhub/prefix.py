"""Prefixes as `adapters` 1.3 stores them, flat: one vector for each type of attention (``methods/prefix_tuning.py``).

A pool in the base model holds the vector ``control_trans`` of length ``L 2 T K``: for each virtual token, the keys of the
first layer, its values, the keys of the second layer, and so on. The pool's forward pass views it as (L, 2 T, heads,
K / heads).

With T5's relative positions, `adapters` counts the keys of a prefix as positions, which shifts the positions of the
text, so prefixes are refused.

Shape suffixes: L virtual tokens, T layers, K width of the keys of all heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from continual_petl.backbones.backbone import Backbone
from continual_petl.backbones.sites import Layer, Sites
from continual_petl.banks.config.spec import Modification
from continual_petl.exchange.adapterhub.parts import HubAdapter, left_out, refused
from continual_petl.exchange.subject import Subject
from continual_petl.kind_registry import kind_of
from continual_petl.streams.encoding.tokenise_sources import room_for

POOL = "prefix_tuning.prefix_tunings"
"""The path of all prefixes in the base model."""


def prefixes(subject: Subject, name: str, rows: Sequence[Modification]) -> list[HubAdapter]:
    """Return a bank's prefixes; see `continual_petl.exchange.adapterhub.bottleneck.bottlenecks`."""
    first = rows[0]
    why = why_no_prefix(subject.backbone)
    # GPT-2's eager attention has a causal mask for the model's positions, in which the keys of a prefix count.
    room = int(getattr(subject.backbone.model.config, "n_positions", 0) or 0) - (first.bottleneck or 0)
    if subject.backbone.anatomy.family == "gpt2" and _longest(subject) > room:
        why = (
            f"with a prefix of {first.bottleneck}, adapters reads texts of up to {room} tokens on this backbone, and this "
            f"task's have up to {_longest(subject)} (backbone.max_length)"
        )
    if len(rows) > 1:
        why = "it has several prefixes at the same heads"
    elif first.composition != "gated":
        why = "adapters has no multi-head parallel adapter"
    if why is not None:
        raise refused(subject, why)
    parts: dict[str, list[Tensor]] = {}
    for prefix in subject.bank.prefixes():
        parts.setdefault(location_of(subject.bank.sites, prefix.layer, prefix.name), []).extend(
            (prefix.keys, prefix.values)
        )
    config = {
        "architecture": "prefix_tuning",
        "encoder_prefix": True,
        "cross_prefix": True,
        "leave_out": left_out(subject),
        "flat": True,
        "prefix_length": first.bottleneck,
        # Options of the reparametrisation network, which a flat prefix does not have.
        "bottleneck_size": 512,
        "non_linearity": "tanh",
        "dropout": first.dropout,
        "use_gating": False,
        "shared_gating": True,
    }
    # (L, 2 T, K)
    tensors = {f"{POOL}.{name}.{at}.control_trans": torch.stack(p, dim=1).flatten() for at, p in parts.items()}
    return [HubAdapter(config, tensors)]


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
