"""Prefixes of `adapters` as a modification of a bank: the reverse of `continual_petl.exchange.adapterhub.prefix`.

A prefix that a network computes (a table and two linear layers) is replaced with the network's output, as a bank's prefix is
after training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.attention import Prefix
from continual_petl.banks.forms.base import key
from continual_petl.errors import InputError
from continual_petl.exchange.adapterhub.hooks import prefix_states
from continual_petl.exchange.adapterhub.prefix import POOL, location_of, why_no_prefix
from continual_petl.exchange.adapterhub.read_config import PrefixConfig
from continual_petl.exchange.adapterhub.read_part import Part, Stored
from continual_petl.exchange.draft import put

_COPIES = ".prefix_tuning.pool."


def prefixes(config: PrefixConfig, name: str, backbone: Backbone) -> Part:
    """Return an adapter's prefixes as part of a bank; see `bottlenecks`."""
    if (why := why_no_prefix(backbone)) is not None:
        raise InputError(f"adapter_config.json: key config.architecture: got 'prefix_tuning', but {why}.")
    off = [flag for flag in ("encoder_prefix", "cross_prefix") if not getattr(config, flag)]
    if off and len(backbone.anatomy.stacks) > 1:
        raise InputError(
            f"adapter_config.json: key {off[0]}: got False, but a bank has prefixes in every attention module of its "
            "layers."
        )
    options, num_heads = config.model_dump(), int(backbone.model.config.num_attention_heads)

    def fill(bank: Bank, rows: Sequence[Modification], stored: Stored) -> None:
        group: Any = bank.modifications[str(bank.spec.modifications.index(rows[0]))]
        by_layer: dict[str, list[Prefix]] = {}
        for layer in bank.layers:
            for attention in layer.stack.attentions:
                held = group[key(layer)][attention.name]
                assert isinstance(held, Prefix)
                by_layer.setdefault(location_of(backbone.sites, layer, attention.name), []).append(held)
        for at, members in by_layer.items():
            path = f"{POOL}.{name}.{at}"
            for held, (keys, values) in zip(
                members, _states(options, path, len(members), num_heads, stored), strict=True
            ):
                put(held.key, keys, path)
                put(held.value, values, path)

    row = {"form": "attention", "modifies": "heads", "insertion": "parallel", "composition": "gated"}
    return Part([row | {"length": config.prefix_length, "dropout": config.dropout}], fill)


def _states(
    options: dict[str, Any], path: str, num_layers: int, num_heads: int, stored: Stored
) -> list[tuple[Tensor, Tensor]]:
    try:
        return prefix_states(options, path, num_layers, num_heads, stored.take)
    except (KeyError, RuntimeError) as error:
        raise InputError(
            f"folder: the tensors of {path[:300]!r} do not have the shapes that adapter_config.json asks for "
            f"({str(error)[:300]}): the adapter belongs to another base model, or its two files do not belong together."
        ) from error


def without_copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors without the copies of the prefix pool that `adapters` saves for every attention module.

    Raises:
        InputError: if a copy differs from its original.
    """
    kept = {name: tensor for name, tensor in tensors.items() if _COPIES not in name}
    for name, tensor in tensors.items():
        if _COPIES not in name:
            continue
        original = kept.get(f"prefix_tuning.{name.partition(_COPIES)[2]}")
        if original is None or original.shape != tensor.shape or not bool((original == tensor).all()):
            raise InputError(
                f"folder: the tensor {name[:300]!r} should be a copy of a tensor in the prefix pool, but differs from it; "
                "the file is damaged, or was changed."
            )
    return kept
