"""What `adapters` 1.3 computes with the files of an adapter, restated: files in, logits out.

Bottlenecks (``Adapter`` and ``ParallelAdapter`` of ``methods/modeling.py``), f the output and x the input of a sub-layer:
sequential ``f + s up(phi(down(h)))`` with ``h = f``, or ``h = LN(f + x)`` with original_ln_before; parallel
``f + s up(phi(down(x)))``. LoRA: ``y + (alpha / r) B A x``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import activations

from continual_petl.backbones.backbone import pool
from continual_petl.backbones.sites import Layer, attention_of
from continual_petl.banks.attach import one_pass, turn
from continual_petl.errors import ExportError
from continual_petl.export.adapterhub import place_of
from continual_petl.export.compare import Compute
from continual_petl.export.restated import HEAD
from continual_petl.export.subject import Subject
from continual_petl.heads.kinds import GENERATIVE
from continual_petl.learner.answer import reading_inputs


def adapterhub_restated(subject: Subject, folder: Path) -> Compute:
    """Return the function from a model's inputs to the logits that adapters computes with the files in a folder.

    Raises:
        ExportError: if there are other tensors than the configuration asks for.
    """
    device = str(subject.backbone.model.device)
    whole = json.loads((folder / "adapter_config.json").read_text("utf-8"))
    head = load_file(folder / HEAD, device=device) if (folder / HEAD).is_file() else {}
    return adapterhub_computed(subject, whole=whole, stored=load_file(folder / "adapter.safetensors"), head=head)


def adapterhub_computed(
    subject: Subject, *, whole: Mapping[str, Any], stored: Mapping[str, Tensor], head: Mapping[str, Tensor]
) -> Compute:
    """Return the function from a model's inputs to the logits that adapters computes with the content of an adapter's files.

    Args:
        subject: the task; only its backbone, pooling and kind are read.
        whole: the configuration.
        stored: the tensors.
        head: the head's tensors.

    Raises:
        ExportError: if there are other tensors than the configuration asks for.
    """
    model, sites = subject.backbone.model, subject.bank.sites
    config, name = whole["config"], whole["name"]
    wanted = [layer for layer in sites.layers if layer.number not in config["leave_out"]]
    used: set[str] = set()

    def take(path: str) -> Tensor:
        used.add(path)
        return stored[path].to(model.device)

    hooked: list[tuple[nn.Module, Any]] = []
    try:
        if config.get("architecture") == "lora":
            hooked += _loras(subject, config, name, wanted, take)
        else:
            for layer in wanted:
                hooked += _bottlenecks(subject, config, name, layer, take)
    except KeyError as error:
        raise ExportError(_wrong(subject, str(error))) from error
    if used != stored.keys():
        raise ExportError(_wrong(subject, repr(min(used ^ stored.keys()))))

    def compute(inputs: dict[str, Tensor]) -> Tensor:
        generates = subject.plan.kind in GENERATIVE
        given: dict[str, Any] = dict(inputs) if generates else dict(reading_inputs(subject.backbone, inputs))
        with turn(model), ExitStack() as stack:
            for module, hook in hooked:
                stack.enter_context(module.register_forward_hook(hook))
            output = one_pass(model, sites, given, {}, 0, base=not generates)
        if generates:
            logits: Tensor = output.logits
            return logits
        token, mask = subject.plan.kind == "token-classification", inputs.get("attention_mask")
        features = output.last_hidden_state if token else pool(output, mask, subject.plan.pooling)
        return F.linear(features, head["weight"], head["bias"])

    return compute


def _wrong(subject: Subject, tensor: str) -> str:
    return (
        f"task {subject.plan.name!r}: the configuration of the exported adapter asks for other tensors than were written, "
        f"such as {tensor}. Nothing was written; please report this with the versions of transformers and of continual-petl."
    )


def _bottlenecks(subject: Subject, config: dict[str, Any], name: str, layer: Layer, take: Any) -> list[Any]:
    """Return the hooks of one layer, with their modules."""
    model, stack = subject.backbone.model, layer.stack
    sublayers: list[str] = [a.name for a in stack.attentions[:1]] if config["mh_adapter"] else []
    sublayers += [a.name for a in stack.attentions[1:]] if config["cross_adapter"] else []
    sublayers += ["ffn"] if config["output_adapter"] else []
    found: list[Any] = []
    for sublayer in sublayers:
        part = stack.ffn if sublayer == "ffn" else attention_of(layer, sublayer)
        first = subject.bank.sites.into(layer)[0] if sublayer == "ffn" else attention_of(layer, sublayer).query
        path = f"{place_of(subject.bank.sites, layer, sublayer)}.{name}"
        down, up = ((take(f"{path}.{which}.weight"), take(f"{path}.{which}.bias")) for which in _LEAVES)
        if int(down[0].shape[1] // config["reduction_factor"]) != down[0].shape[0]:
            raise KeyError(f"{path}.adapter_down.0.weight")
        norm = model.get_submodule(layer.full(part.norm))
        read: list[Tensor] = []
        found.append((model.get_submodule(layer.full(first.path)), _recording(read)))
        found.append((model.get_submodule(layer.full(part.result)), _bottleneck(config, down, up, norm, read)))
    return found


_LEAVES = ("adapter_down.0", "adapter_up")


def _recording(read: list[Tensor]) -> Any:
    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Any) -> None:
        read[:] = [args[0]]

    return hook


def _bottleneck(config: dict[str, Any], down: Any, up: Any, norm: Any, read: list[Tensor]) -> Any:
    leaky = config["non_linearity"] == "leakyrelu"
    phi: Any = F.leaky_relu if leaky else activations.get_activation(config["non_linearity"])  # type: ignore[no-untyped-call]

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        x = read[0]
        h = x if config["is_parallel"] else norm(output + x) if config["original_ln_before"] else output
        changed: Tensor = output + config["scaling"] * F.linear(phi(F.linear(h, *down)), *up)
        return changed

    return hook


def _loras(subject: Subject, config: dict[str, Any], name: str, layers: list[Layer], take: Any) -> list[Any]:
    """Return the hooks of all layers, with their modules."""
    sites, scale = subject.bank.sites, config["alpha"] / config["r"]
    long = {"q": "query", "k": "key", "v": "value"}
    paths: list[str] = []
    for layer in layers:
        for attention in layer.stack.attentions if config["selfattn_lora"] else ():
            paths += [layer.full(getattr(attention, long[matrix]).path) for matrix in config["attn_matrices"]]
        paths += [layer.full(sites.into(layer)[0].path)] if config["intermediate_lora"] else []
        paths += [layer.full(layer.stack.ffn.out)] if config["output_lora"] else []
    found = []
    for path in paths:
        start = f"{path.removeprefix(sites.base)}.loras.{name}"
        down_RI, up_OR = take(f"{start}.lora_A"), take(f"{start}.lora_B")

        def hook(m: nn.Module, args: Any, y: Tensor, a: Tensor = down_RI, b: Tensor = up_OR) -> Tensor:
            changed: Tensor = y + scale * F.linear(F.linear(args[0], a), b)
            return changed

        found.append((subject.backbone.model.get_submodule(path), hook))
    return found
