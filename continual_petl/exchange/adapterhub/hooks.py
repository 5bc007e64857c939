"""The methods of `adapters` 1.3, restated as hooks that look up tensors by path and change the states of a layer.

Bottlenecks (``Adapter`` and ``ParallelAdapter`` of ``methods/modeling.py``), where f is the output of a sub-layer and x its
input: sequential ``f + s up(phi(down(h)))`` with ``h = f``, or ``h = LN(f + x)`` with original_ln_before; parallel
``f + s up(phi(down(x)))``. LoRA: ``y + (alpha / r) B A x``. IA3: ``y l``. Prefixes: keys and values in front of the text's
(``methods/prefix_tuning.py``), from a vector, or from a table and a network.

Shape suffixes: I width of the input, O width of the outputs, R rank, L virtual tokens, T layers, K width of the keys of all
heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import activations

from continual_petl.backbones.sites import Layer, attention_of
from continual_petl.banks.config.spec import Modification
from continual_petl.banks.forms.base import PrefixPlacement
from continual_petl.exchange.adapterhub.lowrank import inner_path
from continual_petl.exchange.adapterhub.parts import place_of
from continual_petl.exchange.adapterhub.prefix import POOL, location_of
from continual_petl.exchange.subject import Subject

Take = Callable[[str], Tensor]
"""Returns the tensor at a path; raises `KeyError` if there is none."""


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
        down, up = ((take(f"{path}.{which}.weight"), take(f"{path}.{which}.bias")) for which in _LEAVES)
        if int(down[0].shape[1] // config["reduction_factor"]) != down[0].shape[0]:
            raise KeyError(f"{path}.adapter_down.0.weight")
        norm = model.get_submodule(layer.full(part.norm))
        read: list[Tensor] = []
        bottlenecks.append((model.get_submodule(layer.full(first.path)), _recording(read)))
        bottlenecks.append((model.get_submodule(layer.full(part.result)), _bottleneck(config, down, up, norm, read)))
    return bottlenecks


_LEAVES = ("adapter_down.0", "adapter_up")


def _recording(read: list[Tensor]) -> Any:
    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:
        read[:] = [args[0]]

    return hook


def _bottleneck(config: dict[str, Any], down: Any, up: Any, norm: Any, read: list[Tensor]) -> Any:
    phi = _activation(config["non_linearity"])

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        x = read[0]
        h = x if config["is_parallel"] else norm(output + x) if config["original_ln_before"] else output
        changed: Tensor = output + config["scaling"] * F.linear(phi(F.linear(h, *down)), *up)
        return changed

    return hook


def _activation(name: str) -> Any:
    name = name.lower()
    function: Any = F.leaky_relu if name == "leakyrelu" else activations.get_activation(name)  # type: ignore[no-untyped-call]
    return function


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


def prefix_states(
    config: dict[str, Any], path: str, num_layers: int, num_heads: int, take: Take
) -> list[tuple[Tensor, Tensor]]:
    """Return the keys (L, K) and values (L, K) of every layer with one type of attention.

    Args:
        config: the configuration.
        path: the path of these prefixes in the pool.
        num_layers: number of layers.
        num_heads: number of heads.
        take: returns the tensor at a path.

    Raises:
        KeyError: if a tensor is missing or has the wrong shape.
    """
    length = config["prefix_length"]
    if config["flat"]:
        control = take(f"{path}.control_trans")
    else:
        into, out = ((take(f"{path}.control_trans.{n}.weight"), take(f"{path}.control_trans.{n}.bias")) for n in (0, 2))
        phi = _activation(config["non_linearity"])
        control = F.linear(phi(F.linear(take(f"{path}.wte.weight"), *into)), *out)
    try:
        # (L, 2 T, heads, K / heads), then (2 T, heads, L, K / heads)
        parts = control.reshape(length, 2 * num_layers, num_heads, -1).permute(1, 2, 0, 3)
    except RuntimeError as error:
        raise KeyError(f"{path}.control_trans") from error
    flat = [part.transpose(0, 1).flatten(1) for part in parts]
    return list(zip(flat[::2], flat[1::2], strict=True))
