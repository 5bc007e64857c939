"""Bottlenecks of `adapters` as modifications of a bank: the reverse of `continual_petl.exchange.adapterhub.bottleneck`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.bottleneck import Bottleneck
from continual_petl.errors import InputError
from continual_petl.exchange.adapterhub.parts import place_of, placed
from continual_petl.exchange.adapterhub.read_config import BottleneckConfig
from continual_petl.exchange.adapterhub.read_part import Part, Stored

_DOWN, _UP = "adapter_down.0", "adapter_up"


def bottlenecks(config: BottleneckConfig, name: str, backbone: Backbone) -> Part:
    """Return an adapter's bottlenecks as part of a bank.

    Args:
        config: the options of the bottlenecks.
        name: the adapter's name.
        backbone: the backbone.

    Raises:
        InputError: if a bank has no equivalent of these bottlenecks.
    """
    attention = config.mh_adapter or config.cross_adapter
    if (why := _why_not(config, backbone)) is not None:
        raise InputError(f"adapter_config.json: {why}.")
    size = int(backbone.hidden_size // config.reduction_factor)
    row: dict[str, Any] = {"form": "bottleneck", "bottleneck": size, "activation": config.activation}
    row |= {"insertion": "parallel" if config.is_parallel else "sequential"}
    row |= {"composition": "add"} if config.scaling == 1.0 else {"composition": "scaled", "scale": config.scaling}
    row |= {"normalised_input": True} if config.original_ln_before and not config.is_parallel else {}
    sites = ["attention"] * attention + ["ffn"] * config.output_adapter
    if not 1 <= size <= backbone.hidden_size:
        raise InputError(
            f"adapter_config.json: key reduction_factor: got {config.reduction_factor}, which gives a size of {size}."
        )

    def fill(bank: Bank, rows: Sequence[Modification], stored: Stored) -> None:
        for placement in placed(bank, rows):
            delta, first = placement.delta, placement.layer.stack.attentions[0].name
            assert isinstance(delta, Bottleneck)
            present = placement.name == "ffn" or (
                config.mh_adapter if placement.name == first else config.cross_adapter
            )
            for part, layer in ((_DOWN, delta.down), (_UP, delta.up)):
                for leaf, parameter in layer.named_parameters():
                    if not present:
                        parameter.zero_()  # a bank covers all attention modules of a layer; zeros change nothing
                        continue
                    path = f"{place_of(backbone.sites, placement.layer, placement.name)}.{name}.{part}.{leaf}"
                    stored.set(parameter, path)

    return Part([row | {"modifies": site} for site in sites], fill)


def _why_not(config: BottleneckConfig, backbone: Backbone) -> str | None:
    norm_first = any(layer.stack.norm_first for layer in backbone.sites.layers)
    attention = config.mh_adapter or config.cross_adapter
    if config.activation is None:
        return f"a bank has no equivalent of the activation {config.non_linearity!r} (non_linearity)"
    if config.is_parallel and (attention or norm_first):
        return (
            "parallel bottlenecks (is_parallel) read different states from a bank's, except on the FFN of a post-norm "
            "model"
        )
    if config.original_ln_before and not config.is_parallel and (attention or norm_first):
        return (
            "a bank has bottlenecks that read normalised sums (original_ln_before) only on the FFN of a post-norm model"
        )
    if not (attention or config.output_adapter):
        return "mh_adapter, cross_adapter and output_adapter are all off"
    return None
