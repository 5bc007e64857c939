"""An adapter of `adapters` as a bank: the reverse of `continual_petl.export.adapterhub`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import BankSpec
from continual_petl.banks.forms.bottleneck import Bottleneck
from continual_petl.banks.forms.lowrank import LowRank
from continual_petl.banks.forms.projection import part_of
from continual_petl.errors import InputError
from continual_petl.export.adapterhub import PLACES, place_of
from continual_petl.export.adapterhub_restated import adapterhub_computed
from continual_petl.imports.adapterhub_config import BottleneckConfig, HubConfig, LoraConfig, read_hub_config
from continual_petl.imports.draft import Draft, put
from continual_petl.imports.files import AdapterFiles
from continual_petl.imports.head import find_head, find_kind
from continual_petl.imports.imported import Imported
from continual_petl.imports.places import layer_range

_DOWN, _UP = "adapter_down.0", "adapter_up"
_SITES = {"q": "query", "k": "key", "v": "value"}


def translate_hub(files: AdapterFiles, backbone: Backbone, *, kind: str | None, pooling: str | None) -> Imported:
    """Translate an adapter of `adapters` into a bank; see `continual_petl.imports.peft.translate_peft`.

    Raises:
        InputError: if a bank cannot express it.
    """
    outer, config = read_hub_config(files.config)
    family = str(backbone.model.config.model_type)
    if outer.model_type != family or family not in PLACES:
        raise InputError(
            f"adapter_config.json: key model_type: got {outer.model_type!r}, but the run's backbone is of type {family!r}; "
            f"an adapter must be for the backbone's own type, and that must be one of {', '.join(PLACES)}."
        )
    found = find_kind(files, None, backbone, kind)
    head = find_head(files, found, {}, backbone, pooling)
    start = f"{backbone.model.base_model_prefix}."
    inside = all(name.startswith(start) for name in files.tensors)
    stored = {name.removeprefix(start) if inside else name: tensor for name, tensor in files.tensors.items()}
    numbers = [layer.number for layer in backbone.sites.layers if layer.number not in config.leave_out]
    if not numbers:
        raise InputError("adapter_config.json: key leave_out: it leaves out all layers, so there is nothing to import.")
    layers = layer_range(numbers, backbone.num_layers)
    if isinstance(config, BottleneckConfig):
        draft = _bottlenecks(config, outer, stored, backbone, layers)
    else:
        draft = _low_rank(config, outer, stored, backbone, layers)
    whole = {"name": outer.name, "config": config.model_dump()}
    computes = partial(adapterhub_computed, whole=whole, stored=stored)
    method = "lora" if isinstance(config, LoraConfig) else "bottleneck"
    return Imported(draft, head, outer.model_name or None, None, "adapters", method, stored, computes)


def _bottlenecks(
    config: BottleneckConfig, outer: HubConfig, stored: dict[str, Tensor], backbone: Backbone, layers: str
) -> Draft:
    norm_first = any(layer.stack.norm_first for layer in backbone.sites.layers)
    attention = config.mh_adapter or config.cross_adapter
    why = None
    if config.activation is None:
        why = f"a bank has no activation like {config.non_linearity!r} (non_linearity)"
    elif config.is_parallel and (attention or norm_first):
        why = "a parallel bottleneck (is_parallel) has another input there than on the FFN of a post-norm model"
    elif config.original_ln_before and not config.is_parallel and (attention or norm_first):
        why = "a bank's bottlenecks can read normalised sums (original_ln_before) only on the FFN of a post-norm model"
    elif not (attention or config.output_adapter):
        why = "mh_adapter, cross_adapter and output_adapter are all off"
    if why is not None:
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
    spec = BankSpec.model_validate({"modifications": [row | {"modifies": site} for site in sites], "layers": layers})

    def fill(bank: Bank) -> None:
        left = set(stored)
        for placement in bank.placements():
            delta, first = placement.delta, placement.layer.stack.attentions[0].name
            assert isinstance(delta, Bottleneck)
            present = placement.name == "ffn" or (
                config.mh_adapter if placement.name == first else config.cross_adapter
            )
            for part, layer in ((_DOWN, delta.down), (_UP, delta.up)):
                for leaf, parameter in layer.named_parameters():
                    if not present:
                        parameter.zero_()  # a bank modifies all attentions of a layer; zeros change nothing
                        continue
                    path = f"{place_of(backbone.sites, placement.layer, placement.name)}.{outer.name}.{part}.{leaf}"
                    _put(parameter, stored, path, left)
        _check_used(left)

    return Draft(spec, fill)


def _low_rank(
    config: LoraConfig, outer: HubConfig, stored: dict[str, Tensor], backbone: Backbone, layers: str
) -> Draft:
    sites = [_SITES[matrix] for matrix in config.attn_matrices] if config.selfattn_lora else []
    sites += ["ffn_in"] * config.intermediate_lora + ["ffn_out"] * config.output_lora
    row = {"form": "lowrank", "insertion": "parallel", "composition": "scaled", "rank": config.r}
    row |= {"scale": config.alpha / config.r, "dropout": config.dropout}
    order = [site for site in ("query", "key", "value", "ffn_in", "ffn_out") if site in sites]
    if not order or len(order) < len(sites):
        raise InputError("adapter_config.json: key attn_matrices: LoRA is on no projection, or twice on the same one.")
    spec = BankSpec.model_validate({"modifications": [row | {"modifies": site} for site in order], "layers": layers})

    def fill(bank: Bank) -> None:
        left = set(stored)
        for placement in bank.placements():
            path, columns = part_of(backbone.sites, placement)
            if columns is not None or placement.name == "ffn_in_1":
                raise InputError(
                    f"adapter.safetensors: {path!r} is shared by several projections in this family, which adapters stores "
                    "in its own way; such an adapter cannot be imported."
                )
            delta = placement.delta
            assert isinstance(delta, LowRank)
            start = f"{path.removeprefix(backbone.sites.base)}.loras.{outer.name}"
            _put(delta.down.weight, stored, f"{start}.lora_A", left)
            _put(delta.up.weight, stored, f"{start}.lora_B", left)
        _check_used(left)

    return Draft(spec, fill)


@torch.no_grad()
def _put(parameter: Tensor, stored: dict[str, Tensor], path: str, left: set[str]) -> None:
    if path not in stored:
        raise InputError(
            f"folder: the tensor {path[:300]!r} that adapter_config.json asks for is missing; it is incomplete."
        )
    put(parameter, stored[path], path)
    left.discard(path)


def _check_used(left: set[str]) -> None:
    if left:
        raise InputError(
            f"folder: the tensor {min(left)[:300]!r} is not one that adapter_config.json asks for; the adapter has parts "
            "that cannot be imported, or one of the files was replaced."
        )
