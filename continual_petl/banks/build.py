"""From a specification to modules with the widths of a backbone's sites; nothing is drawn here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import nn

from continual_petl.backbones.anatomy import Projection
from continual_petl.backbones.sites import Layer, Sites
from continual_petl.banks.forms import Bottleneck, LowRank
from continual_petl.banks.sparse import DenseDifference, SparseDifference
from continual_petl.banks.spec import BankSpec, Modification
from continual_petl.banks.vectors import Prefix, PrefixMLP, Prompt, PromptEncoder
from continual_petl.errors import InputError

Reads = Literal["states", "pooler", "logits"]
"""What of the backbone a task's answer goes through: token states, the pooler, or the language-modelling head."""

TRAINED = "trained"
"""Key of the parts that are folded away after training."""
INPUT = "input"
WEIGHTS = "weights"


def build(
    modification: Modification, sites: Sites, layers: list[Layer], shapes: Mapping[str, torch.Size], *, folded: bool
) -> nn.ModuleDict:
    """Return the modules of one modification, by place.

    Args:
        modification: any but an additive one, which has parameters only.
        sites: where they go.
        layers: those of the range.
        shapes: of the backbone's parameters that a sparse difference covers.
        folded: whether to build what is stored instead of what is trained.

    Raises:
        InputError: if the family has no such site, or a size is too large for it.
    """
    match modification.form:
        case "prompt":
            cls = Prompt if folded or modification.reparametrise == "none" else PromptEncoder
            return nn.ModuleDict({INPUT: cls(modification, prompt_width(sites))})
        case "sparse":
            difference = (SparseDifference if folded else DenseDifference)(modification, shapes)
            return nn.ModuleDict({WEIGHTS: difference})
        case "attention":
            _check_registry(sites)
            if modification.reparametrise != "none" and not folded:
                return nn.ModuleDict({TRAINED: _prefix_mlps(modification, sites, layers)})
    return nn.ModuleDict({key(layer): _in_layer(modification, sites, layer) for layer in layers})


def key(layer: Layer) -> str:
    """Return a layer's name inside a bank."""
    return f"layer_{layer.number}"


def projections(sites: Sites, layer: Layer, modifies: str) -> dict[str, Projection]:
    """Return the projections that a low-rank form at this site changes, by their names in the bank."""
    stack = layer.stack
    match modifies:
        case "ffn_in":
            into = sites.into(layer)
            # A gated FFN has two first projections; each gets a change of its own.
            return {"ffn_in" if len(into) == 1 else f"ffn_in_{i}": projection for i, projection in enumerate(into)}
        case "ffn_out":
            return {"ffn_out": Projection(path=stack.ffn.out)}
        case "attention_out":
            return {attention.name: Projection(path=attention.out) for attention in stack.attentions}
    return {attention.name: getattr(attention, modifies) for attention in stack.attentions}


def prefix_widths(sites: Sites, layer: Layer) -> dict[str, tuple[int, int]]:
    """Return the widths of all keys and all values of each attention of a layer."""
    return {
        attention.name: (sites.width(layer, attention.key).out, sites.width(layer, attention.value).out)
        for attention in layer.stack.attentions
    }


def prompt_width(sites: Sites) -> int:
    """Return the width of the vectors in front of which a prompt is put."""
    prompt = sites.anatomy.prompt
    if prompt is None:
        raise InputError(
            f"bank: prompts have no place in family {sites.anatomy.family!r}, whose anatomy names none: choose another form."
        )
    if prompt.norm is not None:
        # A dropout stands where the family does not normalise its embeddings.
        return sites.norm_width(sites.base + prompt.norm) or sites.hidden_width(sites.layers[0])
    return sites.embedding_width


def _in_layer(modification: Modification, sites: Sites, layer: Layer) -> nn.ModuleDict:
    size = modification.bottleneck
    assert size is not None, "checked by the specification"
    if modification.form == "lowrank":
        found: dict[str, nn.Module] = {}
        for name, projection in projections(sites, layer, modification.modifies).items():
            into, out = sites.width(layer, projection)
            _check_size("rank", size, min(into, out), f"the smaller side of {layer.full(projection.path)}")
            found[name] = LowRank(modification, into, out)
        return nn.ModuleDict(found)
    if modification.form == "attention":
        widths = prefix_widths(sites, layer)
        return nn.ModuleDict({name: Prefix(modification, *pair) for name, pair in widths.items()})
    hidden = sites.hidden_width(layer)
    _check_size("bottleneck", size, hidden, "the hidden size of the backbone")
    if modification.normalised_input and layer.stack.norm_first:
        raise InputError(
            f"bank: normalised_input reads the FFN's output after the residual and its LayerNorm, but family "
            f"{sites.anatomy.family!r} normalises before its sub-layers. Write normalised_input: false (the adapter then "
            "reads the FFN's own output), or choose another preset."
        )
    if modification.modifies == "ffn":
        return nn.ModuleDict({"ffn": Bottleneck(modification, hidden, hidden)})
    heads = modification.modifies == "heads"
    return nn.ModuleDict(
        {
            a.name: Bottleneck(modification, hidden, sites.module_width(layer.full(a.out)).into if heads else hidden)
            for a in layer.stack.attentions
        }
    )


def _prefix_mlps(modification: Modification, sites: Sites, layers: list[Layer]) -> nn.ModuleDict:
    """Return one MLP for each kind of attention: encoder's own, decoder's own, decoder's across."""
    kinds: dict[str, list[tuple[int, int]]] = {}
    for layer in layers:
        for name, widths in prefix_widths(sites, layer).items():
            kinds.setdefault(prefix_kind(sites, layer, name), []).append(widths)
    width = sites.hidden_width(sites.layers[0])
    return nn.ModuleDict({kind: PrefixMLP(modification, width, widths) for kind, widths in kinds.items()})


def prefix_kind(sites: Sites, layer: Layer, attention: str) -> str:
    """Return the name of a kind of attention: the number of its stack and its own name."""
    return f"stack_{sites.anatomy.stacks.index(layer.stack)}_{attention}"


def _check_size(name: str, size: int, limit: int, what: str) -> None:
    if size > limit:
        raise InputError(f"bank: {name} {size} is larger than {limit}, {what}: give {name} at most {limit}.")


def _check_registry(sites: Sites) -> None:
    if not sites.anatomy.attention_registry:
        raise InputError(
            f"bank: family {sites.anatomy.family!r} computes attention in code of its own, not through the attention "
            "registry of transformers, so nothing can join its heads (form: attention on heads, as in the presets "
            "prefix, prefix_flat, multihead_parallel, mam and mam_flat). Use bottleneck, low-rank, prompt or additive forms "
            "on it."
        )


def own_names(spec: BankSpec, model: nn.Module, sites: Sites, layers: list[Layer], reads: Reads) -> list[str]:
    """Return the names of the backbone parameters that the bank has a copy or a difference of, in the backbone's order.

    Raises:
        InputError: if biases are asked for and there are none.
    """
    kinds = {m.modifies for m in spec.modifications if m.form in ("additive", "sparse")}
    norms = {path for layer in layers for path in sites.norms(layer)} if spec.layernorms == "own" else set()
    numbers = {layer.number for layer in layers}

    def wanted(name: str) -> bool:
        if name.rpartition(".")[0] in norms:
            return True
        if name.startswith("lm_head.") and reads != "logits":
            return False
        owner = sites.owner(name)
        if owner is None:
            # The pooler is not part of the encoder (Houlsby et al. leave it frozen); a full copy that is read has it.
            return "weights" in kinds and reads == "pooler" and len(layers) == sites.num_layers
        if owner not in numbers:
            return False
        return "weights" in kinds or ("bias" in kinds and name.endswith("bias"))

    found = [name for name, _ in model.named_parameters() if wanted(name)]
    if "bias" in kinds and not any(name.endswith("bias") for name in found):
        raise InputError(
            f"bank: bitfit trains biases, but family {sites.anatomy.family!r} has none in this layer range: choose another "
            "preset, such as layernorm."
        )
    return found
