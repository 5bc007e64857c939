"""IA3 and LayerNorm tuning as `peft` 0.21 stores them: from a bank, and as parts of one.

peft multiplies the outputs of a module, or the inputs if it is among ``feedforward_modules``; unchanged outputs of a fused
module are multiplied by one. For a LayerNorm, it stores a full copy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.config.forms.base import Site
from continual_petl.banks.config.spec import BankSpec, select_layers
from continual_petl.banks.forms.projection import part_of
from continual_petl.banks.forms.rescale import Rescale
from continual_petl.errors import InputError
from continual_petl.exchange.adapter_files import Adapter
from continual_petl.exchange.imported import Draft, layer_range, put
from continual_petl.exchange.peft.config import PeftConfig, matches
from continual_petl.exchange.peft.names import (
    FACTOR,
    FACTORS,
    INSIDE,
    Changed,
    Names,
    by_module,
    changed_targets,
    check_known,
    draft_of,
    norms_of,
)
from continual_petl.exchange.subject import Subject


@torch.no_grad()
def factors(subject: Subject, names: Names) -> Adapter:
    """Return the factors of a bank that has no other modifications."""
    model, sites = subject.backbone.model, subject.bank.sites
    tensors: dict[str, Tensor] = {}
    inner: set[str] = set()
    for path, placements in by_module(subject).items():
        name, width = names.of(path), sites.module_width(path)
        into = any(placement.modification.modifies == "ffn_inner" for placement in placements)
        inner |= {name} if into else set()
        vector = torch.ones(width.into if into else width.out, device=model.device)
        for placement in placements:
            assert isinstance(placement.delta, Rescale)
            columns = part_of(sites, placement)[1]
            vector[slice(None) if columns is None else columns] *= placement.delta.vector
        tensors[f"{name}.{FACTOR}"] = vector.view(1, -1) if into else vector.view(-1, 1)
    targets = {key.removesuffix(f".{FACTOR}") for key in tensors}
    ends = names.shortest(targets)
    config = {
        "peft_type": "IA3",
        "target_modules": ends,
        # peft requires them to be among the targets, under the same names.
        "feedforward_modules": sorted(inner if inner <= set(ends) else {name.rpartition(".")[2] for name in inner}),
        "fan_in_fan_out": any(hasattr(model.get_submodule(names.path(name)), "nf") for name in targets),
    }
    return Adapter(config, tensors)


def norms(subject: Subject, names: Names) -> Adapter:
    """Return the LayerNorms of a bank that has no modifications."""
    copies = norm_copies(subject, names, f".{INSIDE}")
    targets = {key.rpartition(".")[0].removesuffix(f".{INSIDE}") for key in copies}
    return Adapter({"peft_type": "LN_TUNING", "target_modules": names.shortest(targets)}, copies)


def norm_copies(subject: Subject, names: Names, inside: str = "") -> dict[str, Tensor]:
    """Return all parameters of the LayerNorms that a bank has its own copies of.

    Args:
        subject: the task.
        names: names of modules in the model that peft wraps.
        inside: what follows the name of a LayerNorm in the names of its parameters.
    """
    model = subject.backbone.model
    own = subject.bank.substitutes(model)
    return {
        f"{names.of(path)}{inside}.{part}": own.get(f"{path}.{part}", parameter).detach()
        for path in sorted({name.rpartition(".")[0] for name in own})
        for part, parameter in model.get_submodule(path).named_parameters()
    }


@torch.no_grad()
def read_factors(config: PeftConfig, changed: Changed, names: Names, backbone: Backbone) -> Draft:
    """Return the factors of an adapter; see `continual_petl.exchange.peft.lowrank.read_low_rank`.

    Raises:
        InputError: if a bank does not multiply the states of a module, or multiplies its inputs where the adapter
            multiplies its outputs, or the other way round.
    """
    sites, vectors = backbone.sites, dict[tuple[Site, str, int], Tensor]()
    what = "factors of keys, values and the inputs of the FFN's last layer"
    for target, parts in changed_targets(changed, names, sites, FACTORS, what):
        name = names.of(target.path)
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
    row = {"form": "rescale", "insertion": "sequential", "composition": "multiply"}
    return draft_of(vectors, FACTORS, sites, lambda _: row, _fill)


def _fill(delta: Rescale, vector: Tensor | None) -> None:
    if vector is not None:
        put(delta.vector, vector, FACTOR)


def with_norms(draft: Draft | None, norms: dict[str, Tensor], backbone: Backbone) -> Draft:
    """Return a draft with LayerNorms of its own, added to the given draft or as its only part.

    Args:
        draft: the other parts of the bank; None if there are none.
        norms: parameters of LayerNorms, by their names in the backbone.
        backbone: the backbone.

    Raises:
        InputError: if a parameter does not belong to a LayerNorm in the layers.
    """
    spec, sites = BankSpec() if draft is None else draft.spec, backbone.sites
    owners = norms_of(sites)
    parameters = dict(backbone.model.named_parameters())
    check_known([name for name in norms if name not in parameters], (), "LayerNorms")
    check_known({name.rpartition(".")[0] for name in norms}, owners, "its own copies of the LayerNorms")
    numbers = {owners[name.rpartition(".")[0]] for name in norms}
    if draft is not None:
        numbers |= set(select_layers(spec.layers, sites.num_layers))
    layers = layer_range(numbers, sites.num_layers)
    own = BankSpec.model_validate({**spec.model_dump(), "layernorms": "own", "layers": layers})
    return Draft(own, (lambda bank: None) if draft is None else draft.fill, norms)
