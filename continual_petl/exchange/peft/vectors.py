"""IA3 and LayerNorm tuning as `peft` 0.21 stores them.

peft multiplies the outputs of a module, or the inputs if it is among ``feedforward_modules``; unchanged outputs of a fused
module are multiplied by one. For a LayerNorm, it stores a full copy.

Shape suffixes: I width of the input, O width of the output.
"""

from __future__ import annotations

import torch
from torch import Tensor

from continual_petl.banks.forms.projection import part_of
from continual_petl.banks.forms.rescale import Rescale
from continual_petl.exchange.peft.adapter import Adapter, Names, by_module
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
        tensors[f"{name}.ia3_l"] = vector.view(1, -1) if into else vector.view(-1, 1)
    targets = {key.removesuffix(".ia3_l") for key in tensors}
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
    copies = norm_copies(subject, names, ".ln_tuning_layers")
    targets = {key.rpartition(".")[0].removesuffix(".ln_tuning_layers") for key in copies}
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
