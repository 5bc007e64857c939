"""Imports an adapter of the library `adapters` as a bank: the reverse of `continual_petl.exchange.adapterhub.adapter`."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from continual_petl.backbones.backbone import Backbone
from continual_petl.errors import InputError
from continual_petl.exchange.adapter_files import AdapterFiles
from continual_petl.exchange.adapter_head import ImportedHead, find_head, kind_of_adapter
from continual_petl.exchange.adapterhub.parts import PLACES
from continual_petl.exchange.adapterhub.read_bottleneck import bottlenecks
from continual_petl.exchange.adapterhub.read_config import (
    BottleneckConfig,
    MethodConfig,
    PrefixConfig,
    read_hub_config,
)
from continual_petl.exchange.adapterhub.read_lowrank import factors, low_rank
from continual_petl.exchange.adapterhub.read_part import Part, joined
from continual_petl.exchange.adapterhub.read_prefix import prefixes, without_copies
from continual_petl.exchange.adapterhub.reimplemented import adapterhub_computed
from continual_petl.exchange.imported import Imported
from continual_petl.exchange.target_modules import layer_range
from continual_petl.kind_registry import find_kind


def translate_hub(files: AdapterFiles, backbone: Backbone, *, kind: str | None, pooling: str | None) -> Imported:
    """Translate an adapter of `adapters` into a bank; see `continual_petl.exchange.peft.read_adapter.translate_peft`.

    Raises:
        InputError: if a bank cannot express it.
    """
    outer, configs = read_hub_config(files.config)
    family = str(backbone.model.config.model_type)
    if outer.model_type != family or family not in PLACES:
        raise InputError(
            f"adapter_config.json: key model_type: got {outer.model_type!r}, but the run's backbone is of type {family!r}; "
            f"the two must be the same, and one of {', '.join(PLACES)}."
        )
    head = _head(files, kind_of_adapter(files, None, backbone, kind), backbone, pooling)
    start = f"{backbone.model.base_model_prefix}."
    inside = all(name.startswith(start) for name in files.tensors)
    stored = {name.removeprefix(start) if inside else name: tensor for name, tensor in files.tensors.items()}
    stored = without_copies(stored)
    numbers = [layer.number for layer in backbone.sites.layers if layer.number not in configs[0].leave_out]
    if not numbers:
        raise InputError("adapter_config.json: key leave_out: it leaves out all layers, so there is nothing to import.")
    methods, parts = zip(*(_part(config, outer.name, backbone) for config in configs), strict=True)
    draft = joined(parts, layer_range(numbers, backbone.num_layers), stored)
    whole = {"name": outer.name, "config": {"configs": [config.model_dump() for config in configs]}}
    computes = partial(adapterhub_computed, whole=whole, stored=stored, theirs=files.hub_head)
    return Imported(draft, head, outer.model_name or None, None, "adapters", "+".join(methods), stored, computes)


def _part(config: MethodConfig, name: str, backbone: Backbone) -> tuple[str, Part]:
    """Return the name of a method, and the part of a bank that it becomes."""
    if isinstance(config, BottleneckConfig):
        return "bottleneck", bottlenecks(config, name, backbone)
    if isinstance(config, PrefixConfig):
        return "prefix", prefixes(config, name, backbone)
    if config.composition_mode == "scale":
        return "ia3", factors(config, name, backbone)
    return "lora", low_rank(config, name, backbone)


def _head(files: AdapterFiles, kind: str, backbone: Backbone, pooling: str | None) -> ImportedHead:
    """Return the head, read from head.safetensors or from the head that `adapters` saved beside the adapter."""
    for name, asked in (("kind", kind), ("pooling", pooling)) if files.hub_head is not None else ():
        if asked is not None and asked != files.notes.get(name, asked):
            raise InputError(
                f"{name}: got {asked[:100]!r}, but head_config.json says {files.notes[name]!r}: leave out {name}."
            )
    copies = dict(files.copies)
    if find_kind(kind).generates:
        copies = _changed(copies, backbone)
    head = find_head(files, kind, copies, backbone, pooling)
    if copies:
        raise InputError(
            f"folder: its head has the tensor {min(copies)[:200]!r}, but a bank's head is one linear layer on pooled states. "
            "Put such a layer into head.safetensors (weight, bias), which is read instead."
        )
    return head


def _changed(copies: dict[str, Tensor], backbone: Backbone) -> dict[str, Tensor]:
    """Return the tensors of a language-modelling head that differ from the backbone's."""
    own = backbone.model.state_dict()
    return {
        name: t for name, t in copies.items() if name not in own or not torch.equal(own[name].float().cpu(), t.cpu())
    }
