"""Computes what `adapters` 1.3 computes with an adapter's files, without that library: files in, logits out.

Its methods are restated as hooks that look up tensors by path and change the states of a layer. Bottlenecks (``Adapter`` and
``ParallelAdapter`` of ``methods/modeling.py``), where f is the output of a sub-layer and x its input: sequential ``f + s
up(phi(down(h)))`` with ``h = f``, or ``h = LN(f + x)`` with original_ln_before; parallel ``f + s up(phi(down(x)))``. LoRA:
``y + (alpha / r) B A x``. IA3: ``y l``. Prefixes: keys and values in front of the text's (``methods/prefix_tuning.py``),
from a vector, or from a table and a network.

Shape suffixes: I width of the input, O width of the outputs, R rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from continual_petl.backbones.sites import Layer, attention_of
from continual_petl.banks.attach import Parts, one_pass, reserved
from continual_petl.banks.attention_hooks import changed_heads
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.base import PrefixPlacement
from continual_petl.errors import ExportError
from continual_petl.exchange.adapted_model import AdaptedModel
from continual_petl.exchange.adapterhub.bottlenecks import DOWN, UP, place_of
from continual_petl.exchange.adapterhub.head import read_by_head
from continual_petl.exchange.adapterhub.low_rank import inner_path
from continual_petl.exchange.adapterhub.methods import Take, activation
from continual_petl.exchange.adapterhub.prefixes import POOL, location_of, prefix_states
from continual_petl.exchange.subject import Subject
from continual_petl.kind_registry import kind_of


def adapterhub_computed(
    subject: Subject,
    *,
    whole: Mapping[str, Any],
    stored: Mapping[str, Tensor],
    head: Mapping[str, Tensor],
    theirs: Mapping[str, Any] | None = None,
) -> AdaptedModel:
    """Return the model that `adapters` makes of the content of an adapter's files.

    Args:
        subject: the task; only its backbone, pooling and kind are read.
        whole: the configuration.
        stored: the tensors.
        head: the head's tensors, weight and bias.
        theirs: the head's configuration, if the head is in the format of `adapters`.

    Raises:
        ExportError: if the tensors are not those that the configuration asks for.
    """
    model = subject.backbone.model
    used: set[str] = set()

    def take(path: str) -> Tensor:
        used.add(path)
        return stored[path].to(model.device)

    hooks = Hooks()
    try:
        for config in whole["config"].get("configs", [whole["config"]]):
            add_hooks(hooks, subject, config, whole["name"], take)
    except KeyError as error:
        raise ExportError(_wrong(subject, str(error))) from error
    if used != stored.keys():
        raise ExportError(_wrong(subject, repr(min(used ^ stored.keys()))))

    def run(given: dict[str, Any]) -> Any:
        with reserved(model), changed_heads(model, hooks.heads), ExitStack() as stack:
            for module, hook in hooks.outputs:
                stack.enter_context(module.register_forward_hook(hook))
            return one_pass(model, Parts(sites=subject.bank.sites), given, base=not kind_of(subject.plan).generates)

    return AdaptedModel(
        subject=subject,
        run=run,
        head={part: tensor.to(model.device) for part, tensor in head.items()},
        reads=None if theirs is None else partial(read_by_head, subject, theirs),
    )


def _wrong(subject: Subject, tensor: str) -> str:
    return (
        f"task {subject.plan.name!r}: the configuration of the exported adapter asks for tensors other than those written, "
        f"such as {tensor}. Nothing was written; please report this with the versions of transformers and of continual-petl."
    )


@dataclass
class Hooks:
    """The hooks and prefixes that are attached during a pass."""

    outputs: list[tuple[nn.Module, Any]] = field(default_factory=list)
    """Modules with their forward hooks; hooks of projections come first, since later hooks read what they change."""
    heads: dict[nn.Module, list[PrefixPlacement]] = field(default_factory=dict)
    """Attention modules with their prefixes."""


def add_hooks(hooks: Hooks, subject: Subject, config: dict[str, Any], name: str, take: Take) -> None:
    """Add the hooks of one method of an adapter.

    Args:
        hooks: the hooks of the adapter's earlier methods; the hooks of this one are added to them.
        subject: the task; only its backbone is read.
        config: the method's configuration.
        name: the adapter's name.
        take: returns the tensor at a path.

    Raises:
        KeyError: if a tensor is missing or has the wrong shape.
    """
    layers = [layer for layer in subject.bank.sites.layers if layer.number not in config["leave_out"]]
    match config.get("architecture"):
        case "lora":
            hooks.outputs[:0] = _loras(subject, config, name, layers, take)
        case "prefix_tuning":
            hooks.heads |= _prefixes(subject, config, name, layers, take)
        case _:
            for layer in layers:
                hooks.outputs += _bottlenecks(subject, config, name, layer, take)


def _bottlenecks(subject: Subject, config: dict[str, Any], name: str, layer: Layer, take: Take) -> list[Any]:
    """Return the hooks of one layer, with their modules."""
    model, stack = subject.backbone.model, layer.stack
    sublayers: list[str] = [a.name for a in stack.attentions[:1]] if config["mh_adapter"] else []
    sublayers += [a.name for a in stack.attentions[1:]] if config["cross_adapter"] else []
    sublayers += ["ffn"] if config["output_adapter"] else []
    bottlenecks: list[Any] = []
    for sublayer in sublayers:
        part = stack.ffn if sublayer == "ffn" else attention_of(layer, sublayer)
        first = subject.bank.sites.into(layer)[0] if sublayer == "ffn" else attention_of(layer, sublayer).query
        path = f"{place_of(subject.bank.sites, layer, sublayer)}.{name}"
        down, up = ((take(f"{path}.{which}.weight"), take(f"{path}.{which}.bias")) for which in (DOWN, UP))
        if int(down[0].shape[1] // config["reduction_factor"]) != down[0].shape[0]:
            raise KeyError(f"{path}.{DOWN}.weight")
        norm = model.get_submodule(layer.full(part.norm))
        read: list[Tensor] = []
        bottlenecks.append((model.get_submodule(layer.full(first.path)), _recording(read)))
        bottlenecks.append((model.get_submodule(layer.full(part.result)), _bottleneck(config, down, up, norm, read)))
    return bottlenecks


def _recording(read: list[Tensor]) -> Any:
    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:
        read[:] = [args[0]]

    return hook


def _bottleneck(config: dict[str, Any], down: Any, up: Any, norm: Any, read: list[Tensor]) -> Any:
    phi = activation(config["non_linearity"])

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        x = read[0]
        h = x if config["is_parallel"] else norm(output + x) if config["original_ln_before"] else output
        changed: Tensor = output + config["scaling"] * F.linear(phi(F.linear(h, *down)), *up)
        return changed

    return hook


def _loras(subject: Subject, config: dict[str, Any], name: str, layers: list[Layer], take: Take) -> list[Any]:
    """Return the hooks of all layers, with their modules."""
    sites, model = subject.bank.sites, subject.backbone.model
    long = {"q": "query", "k": "key", "v": "value"}
    # A fused module of all three has a single change, stored with the indices of the changed parts; see `_grouped`.
    paths: dict[str, tuple[int, list[int]]] = {}
    for layer in layers:
        for attention in layer.stack.attentions if config["selfattn_lora"] else ():
            for matrix in long:
                projection = getattr(attention, long[matrix])
                if matrix in config["attn_matrices"]:
                    parts = paths.setdefault(layer.full(projection.path), (projection.num_parts, []))[1]
                    parts.append(projection.part)
        paths |= {inner_path(sites, layer): (1, [0])} if config["intermediate_lora"] else {}
        paths |= {layer.full(layer.stack.ffn.out): (1, [0])} if config["output_lora"] else {}
    loras = []
    for path, (num_parts, parts) in paths.items():
        start = f"{path.removeprefix(sites.base)}.loras.{name}"
        changed_O = _grouped(sites.module_width(path).out, num_parts, parts)
        if config["composition_mode"] == "scale":
            factors_O = torch.ones(sites.module_width(path).out, device=model.device)
            factors_O[changed_O] = config["alpha"] * take(f"{start}.lora_B").flatten()
            loras.append((model.get_submodule(path), _scaling(factors_O)))
        else:
            matrices = take(f"{start}.lora_A"), take(f"{start}.lora_B")
            loras.append((model.get_submodule(path), _adding(*matrices, config["alpha"] / config["r"], changed_O)))
    return loras


def _grouped(width: int, num_parts: int, parts: list[int]) -> Tensor:
    """Return a boolean mask (width,) of the outputs of a module that change."""
    changed = torch.zeros(num_parts, width // num_parts, dtype=torch.bool)
    changed[parts] = True
    return changed.flatten()


def _scaling(factors_O: Tensor) -> Any:
    return lambda module, args, y: y * factors_O


def _adding(down_RI: Tensor, up_OR: Tensor, scale: float, changed_O: Tensor) -> Any:
    num_groups = len(down_RI) // up_OR.shape[1]

    def hook(module: nn.Module, args: Any, y: Tensor) -> Tensor:
        # Each group of outputs reads its own rows of A.
        after_A = F.linear(args[0], down_RI).transpose(-2, -1)
        after_B = F.conv1d(after_A, up_OR.unsqueeze(-1), groups=num_groups).transpose(-2, -1)
        changed = torch.zeros_like(y)
        changed[..., changed_O] = scale * after_B
        return y + changed

    return hook


def _prefixes(
    subject: Subject, config: dict[str, Any], name: str, layers: list[Layer], take: Take
) -> dict[nn.Module, list[PrefixPlacement]]:
    """Return the prefixes of all attention modules."""
    model, places = subject.backbone.model, dict[str, list[tuple[Layer, str]]]()
    for layer in layers:
        for attention in layer.stack.attentions:
            at = location_of(subject.bank.sites, layer, attention.name)
            places.setdefault(at, []).append((layer, attention.name))
    row = {"form": "attention", "modifies": "heads", "insertion": "parallel", "composition": "gated"}
    modification = Modification.model_validate(row | {"length": config["prefix_length"]})
    prefixes: dict[nn.Module, list[PrefixPlacement]] = {}
    for at, members in places.items():
        states = prefix_states(config, f"{POOL}.{name}.{at}", len(members), model.config.num_attention_heads, take)
        for (layer, attention_name), (keys, values) in zip(members, states, strict=True):
            module = model.get_submodule(layer.full(attention_of(layer, attention_name).module))
            prefixes[module] = [PrefixPlacement(modification, layer, attention_name, keys, values, 1.0)]
    return prefixes
