"""LoRA and IA3 of `adapters` as modifications of a bank: the reverse of `continual_petl.exchange.adapterhub.lowrank`.

Shape suffixes: O width of the outputs, R rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.forms.base import Site
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.lowrank import LowRank
from continual_petl.banks.forms.projection import part_of
from continual_petl.banks.forms.rescale import Rescale
from continual_petl.errors import InputError
from continual_petl.exchange.adapterhub.lowrank import MATRICES, inner_path, why_not_inner
from continual_petl.exchange.adapterhub.parts import placed
from continual_petl.exchange.adapterhub.read_config import LoraConfig
from continual_petl.exchange.adapterhub.read_part import Part, Stored
from continual_petl.exchange.draft import put


def low_rank(config: LoraConfig, name: str, backbone: Backbone) -> Part:
    """Return an adapter's LoRA as part of a bank; see `continual_petl.exchange.adapterhub.read_bottleneck.bottlenecks`."""
    attention, model_sites = _attention(config), backbone.sites
    sites: list[Site] = [
        *attention,
        *_named("ffn_in", config.intermediate_lora),
        *_named("ffn_out", config.output_lora),
    ]
    if not sites:
        raise InputError("adapter_config.json: key attn_matrices: LoRA is applied nowhere.")

    def fill(bank: Bank, rows: Sequence[Modification], stored: Stored) -> None:
        for placement in placed(bank, rows):
            delta, site = placement.delta, placement.modification.modifies
            assert isinstance(delta, LowRank)
            path, columns = part_of(model_sites, placement)
            if site == "ffn_in" and path != inner_path(model_sites, placement.layer):
                # A bank changes both first projections of a gated FFN; zeros change nothing.
                delta.down.weight.zero_()
                delta.up.weight.zero_()
                continue
            for leaf, parameter in (("lora_A", delta.down.weight), ("lora_B", delta.up.weight)):
                full = f"{path.removeprefix(model_sites.base)}.loras.{name}.{leaf}"
                tensor = stored.take(full)
                put(parameter, tensor if columns is None else _share(tensor, attention, site), full)

    row = {"form": "lowrank", "insertion": "parallel", "composition": "scaled", "rank": config.r}
    row |= {"scale": config.alpha / config.r, "dropout": config.dropout}
    return Part([row | {"modifies": site} for site in sites], fill)


def factors(config: LoraConfig, name: str, backbone: Backbone) -> Part:
    """Return an adapter's IA3 as part of a bank; see `continual_petl.exchange.adapterhub.read_bottleneck.bottlenecks`."""
    attention, model_sites = _attention(config), backbone.sites
    sites: list[Site] = [*attention, *_named("ffn_inner", config.intermediate_lora)]
    if not sites or "query" in sites or config.output_lora:
        raise InputError(
            "adapter_config.json: key composition_mode: got 'scale', but a bank multiplies keys, values and the FFN's inner "
            "states (attn_matrices k and v, intermediate_lora), and nothing else (q, output_lora)."
        )

    def fill(bank: Bank, rows: Sequence[Modification], stored: Stored) -> None:
        for placement in placed(bank, rows):
            delta, layer, site = placement.delta, placement.layer, placement.modification.modifies
            assert isinstance(delta, Rescale)
            path, columns = part_of(model_sites, placement)
            path = inner_path(model_sites, layer) if site == "ffn_inner" else path
            full = f"{path.removeprefix(model_sites.base)}.loras.{name}.lora_B"
            stored_OR = stored.take(full)
            vector_O = stored_OR[:, 0] if stored_OR.ndim == 2 and stored_OR.shape[1] == 1 else stored_OR
            if site == "ffn_inner":
                why = why_not_inner(model_sites, backbone.model.config, layer, vector_O)
                if why is not None:
                    raise InputError(f"adapter_config.json: key intermediate_lora: {why}.")
            put(delta.vector, vector_O if columns is None else _share(vector_O, attention, site), full)

    row = {"form": "rescale", "insertion": "sequential", "composition": "multiply"}
    return Part([row | {"modifies": site} for site in sites], fill)


def _attention(config: LoraConfig) -> list[Site]:
    """Return the attention projections that are changed, in the order in which a fused module stores them."""
    return [site for site, matrix in MATRICES.items() if config.selfattn_lora and matrix in config.attn_matrices]


def _named(site: Site, present: bool) -> list[Site]:
    return [site] if present else []


def _share(tensor: Tensor, attention: list[Site], site: Site) -> Tensor:
    """Return one projection's rows of a fused module's tensor; `put` checks the number of rows."""
    return tensor.tensor_split(len(attention))[attention.index(site)] if tensor.ndim else tensor
