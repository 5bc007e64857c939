"""Decides which banks can share one pass through the backbone, each acting on its own rows of the batch.

Banks that change weights for all rows (full copies, sparse differences) cannot share a pass, nor can banks that act on a
module whose inputs are not rows of the batch (relative positions). Banks that change the number of tokens (prompts) or
keys (prefixes) can only share a pass with banks that change it in the same way.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers.pytorch_utils import Conv1D

from continual_petl.backbones.sites import Sites
from continual_petl.banks.config.spec import BankSpec, select_layers
from continual_petl.banks.forms import form_of
from continual_petl.banks.mixed.stack_cache import arithmetic
from continual_petl.banks.own_parameters import own_names


class BatchKey(NamedTuple):
    """The properties that banks must have in common to share a pass."""

    num_prompt_vectors: int
    prefixes: tuple[Hashable, ...]


_scales: dict[type[nn.Module], bool] = {}
"""For each class of norm inspected so far, whether its last step is to multiply by the weight and add the bias."""


def batch_key(spec: BankSpec, num_layers: int) -> BatchKey:
    """Return a bank's key: banks can share a pass only if their keys are equal; see also `why_alone`."""
    prefixes = [arithmetic(m) for m in spec.modifications if m.config.in_heads]
    layers = select_layers(spec.layers, num_layers) if prefixes else ()
    return BatchKey(spec.num_prompt_vectors, (*prefixes, layers))


def pass_key(spec: BankSpec, model: nn.Module, sites: Sites) -> BatchKey | None:
    """Return the key of the banks that can share a pass with a bank; None if no other bank can. See `why_alone`."""
    return None if why_alone(spec, model, sites) is not None else batch_key(spec, sites.num_layers)


def why_alone(spec: BankSpec, model: nn.Module, sites: Sites) -> str | None:
    """Return why a bank cannot share a pass with any other, or None if it can.

    Args:
        spec: specification of the bank; its task does not generate text.
        model: the backbone.
        sites: the sites of the model.
    """
    if spec.fuse:
        return "it reads other banks"
    for modification in spec.modifications:
        if modification.modifies == "weights":
            return "it has its own weights"
    layers = [sites.layers[number] for number in select_layers(spec.layers, sites.num_layers)]
    for modification in spec.modifications:
        if modification.config.copies:
            continue
        path = form_of(modification).reads_positions(modification, sites, layers)
        if path is not None:
            return f"it changes {path}, which also projects relative positions, and these are the same for all rows"
    if spec.layernorms == "frozen" and not any(m.config.copies for m in spec.modifications):
        return None
    shared = {path for layer in layers for path in layer.stack.outer_norms} | {
        layer.full(p.path)
        for layer in layers
        for a in layer.stack.attentions
        for p in (a.query, a.key, a.value)
        if p.also_positions
    }
    for name in own_names(spec, model, sites, layers, "states"):
        path, _, leaf = name.rpartition(".")
        if path.removeprefix(sites.base) in shared or path in shared:
            return f"it has its own {leaf} in {path}, whose input is the same for all rows"
        if not per_row(model.get_submodule(path), leaf):
            return f"it has its own {leaf} in {path}, a {type(model.get_submodule(path)).__name__}"
    return None


def per_row(module: nn.Module, leaf: str) -> bool:
    """Return whether a module's parameter can be applied after the module, so that each row can have its own."""
    if isinstance(module, nn.Linear | Conv1D | nn.Conv2d):
        return leaf == "bias"
    weight = getattr(module, "weight", None)
    if leaf not in ("weight", "bias") or not isinstance(weight, Tensor) or weight.ndim != 1:
        return False
    if type(module) not in _scales:
        _scales[type(module)] = _ends_in_scale(module, weight)
    return _scales[type(module)]


@torch.no_grad()
def _ends_in_scale(module: nn.Module, weight: Tensor) -> bool:
    """Return whether ``norm(x) = bare(x) * weight + bias``, where bare is the norm with weight 1 and bias 0."""
    draw = torch.Generator().manual_seed(0)
    x, own, more = (
        torch.randn(shape, generator=draw).to(weight) for shape in ((2, 3, len(weight)), *[weight.shape] * 2)
    )
    bias = getattr(module, "bias", None)
    plain = {"weight": torch.ones_like(weight)} | ({} if bias is None else {"bias": torch.zeros_like(bias)})
    whole = {"weight": own} | ({} if bias is None else {"bias": more})
    bare, expected = (functional_call(module, parameters, (x,)) for parameters in (plain, whole))
    computed = bare * own if bias is None else bare * own + more
    # The module itself may multiply and add in one step, which rounds only once.
    loose = 1e-5 if weight.dtype == torch.float32 else 5e-2
    return computed.shape == expected.shape and bool(torch.allclose(computed, expected, atol=loose, rtol=loose))
