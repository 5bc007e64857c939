"""IA3 and LayerNorms of `peft` as parts of a bank: the reverse of `continual_petl.exchange.peft.vectors`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from continual_petl.backbones.sites import Sites
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.forms.base import Site
from continual_petl.banks.config.spec import BankSpec, Modification, select_layers
from continual_petl.banks.forms.rescale import Rescale
from continual_petl.errors import InputError
from continual_petl.exchange.draft import Draft, put
from continual_petl.exchange.peft.read_config import PeftConfig, matches
from continual_petl.exchange.target_modules import FACTORS, check_known, layer_range, norms_of, target_modules

FACTOR = "ia3_l"


@torch.no_grad()
def factors(
    config: PeftConfig, changed: dict[str, dict[str, Tensor]], names: dict[str, str], model: nn.Module, sites: Sites
) -> Draft:
    """Return the factors of an adapter; see `continual_petl.exchange.peft.read_lowrank.low_rank`.

    Raises:
        InputError: if a bank does not multiply the states of a module, or multiplies its inputs where the adapter
            multiplies its outputs, or the other way round.
    """
    every = target_modules(sites, FACTORS)
    check_known(
        changed, {target.path for target in every}, "factors of keys, values and the inputs of the FFN's last layer"
    )
    vectors: dict[tuple[Site, str, int], Tensor] = {}
    for target in every:
        if target.path not in changed:
            continue
        parts, name = changed[target.path], names[target.path]
        inner = matches(config.feedforward_modules, name)
        width = sites.module_width(target.path)
        size = width.into if inner else width.out
        if parts.keys() != {FACTOR} or parts[FACTOR].shape != ((1, size) if inner else (size, 1)):
            raise InputError(
                f"adapter_model.safetensors: module {name!r} needs one vector {FACTOR} of {size} factors for this backbone; "
                "the adapter belongs to another base model, or the file is damaged."
            )
        if inner != (target.site == "ffn_inner"):
            side = "outputs" if inner else "inputs"
            raise InputError(
                f"adapter_config.json: key feedforward_modules: a bank multiplies the {side} of {name!r}, but this adapter "
                f"multiplies its {'inputs' if inner else 'outputs'}."
            )
        vector = parts[FACTOR].flatten()
        vector = vector if target.columns is None else vector[target.columns]
        if target.columns is None or not bool((vector == 1).all()):
            vectors[target.site, target.name, target.layer.number] = vector
    rows = [
        Modification(form="rescale", modifies=site, insertion="sequential", composition="multiply")
        for site in FACTORS
        if any(key[0] == site for key in vectors)
    ]
    spec = BankSpec(modifications=tuple(rows), layers=layer_range({key[2] for key in vectors}, sites.num_layers))

    def fill(bank: Bank) -> None:
        for placement in bank.placements():
            assert isinstance(placement.delta, Rescale)
            vector = vectors.get((placement.modification.modifies, placement.name, placement.layer.number))
            if vector is not None:
                put(placement.delta.vector, vector, FACTOR)

    return Draft(spec, fill)


def with_norms(draft: Draft | None, norms: dict[str, Tensor], model: nn.Module, sites: Sites) -> Draft:
    """Return a draft with LayerNorms of its own, added to the given draft or as its only part.

    Args:
        draft: the other parts of the bank; None if there are none.
        norms: parameters of LayerNorms, by their names in the backbone.
        model: the backbone.
        sites: its sites.

    Raises:
        InputError: if a parameter does not belong to a LayerNorm in the layers.
    """
    spec = BankSpec() if draft is None else draft.spec
    owners = norms_of(sites)
    parameters = dict(model.named_parameters())
    check_known([name for name in norms if name not in parameters], (), "LayerNorms")
    check_known({name.rpartition(".")[0] for name in norms}, owners, "its own copies of the LayerNorms")
    numbers = {owners[name.rpartition(".")[0]] for name in norms}
    if draft is not None:
        numbers |= set(select_layers(spec.layers, sites.num_layers))
    layers = layer_range(numbers, sites.num_layers)
    own = BankSpec.model_validate({**spec.model_dump(), "layernorms": "own", "layers": layers})
    return Draft(own, (lambda bank: None) if draft is None else draft.fill, norms)
