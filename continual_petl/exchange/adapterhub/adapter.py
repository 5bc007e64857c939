"""Adapters of the library `adapters` 1.3: a bank as one, and one as a bank; the library itself is not needed.

A folder has ``adapter_config.json`` and ``adapter.safetensors``, which ``load_adapter(folder, use_safetensors=True)`` loads;
by default, the library's own files are pickles, which `continual_petl.exchange.pickled` reads. The format is taken from the
source of ``adapters`` 1.3.0. Whatever is written or read is compared with what `adapters` computes with the files, restated
in `continual_petl.exchange.adapterhub.reimplemented`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from continual_petl._strict_model import StrictModel
from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.spec import BankSpec, Modification
from continual_petl.errors import InputError
from continual_petl.exchange.adapter_files import (
    CONFIG,
    HEAD,
    Adapter,
    AdapterFiles,
    Text,
    read_config,
    read_files,
    read_options,
    read_tensor_file,
    refused_option,
    save_head,
    save_tensors,
)
from continual_petl.exchange.adapterhub.bottlenecks import BottleneckMethod
from continual_petl.exchange.adapterhub.head import HEAD_CONFIG, HEAD_TENSORS, described, hub_head, read_hub_head
from continual_petl.exchange.adapterhub.low_rank import LoraMethod
from continual_petl.exchange.adapterhub.methods import PLACES, Method, refused
from continual_petl.exchange.adapterhub.prefixes import PrefixMethod
from continual_petl.exchange.adapterhub.reimplemented import adapterhub_computed
from continual_petl.exchange.check_readme import check_export
from continual_petl.exchange.classes import auto_class
from continual_petl.exchange.formats import check_bank
from continual_petl.exchange.imported import Draft, Imported, ImportedHead, find_head, kind_of_adapter, layer_range, put
from continual_petl.exchange.readme import write_readme
from continual_petl.exchange.readme_code import Loading
from continual_petl.exchange.subject import Subject
from continual_petl.heads.linear import LinearHead
from continual_petl.kind_registry import find_kind, kind_of
from continual_petl.store.files.atomic import json_bytes

TENSORS = "adapter.safetensors"
PICKLE = "pytorch_adapter.bin"
HEAD_PICKLE = "pytorch_model_head.bin"
_OF_FORM: Mapping[str, type[Method]] = {
    "attention": PrefixMethod,
    "bottleneck": BottleneckMethod,
    "lowrank": LoraMethod,
    "rescale": LoraMethod,
}
_OF_ARCHITECTURE: Mapping[str | None, type[Method]] = {
    None: BottleneckMethod,
    "lora": LoraMethod,
    "prefix_tuning": PrefixMethod,
}
_MAX_METHODS = 8
_WITHOUT_EFFECT = {
    *(
        "architecture",
        "init_weights",
        "init_weights_seed",
        "dropout",
        "stochastic_depth",
        "inv_adapter_reduction_factor",
    ),
    *("phm_dim", "factorized_phm_W", "shared_W_phm", "shared_phm_rule", "factorized_phm_rule", "phm_c_init", "dtype"),
    *("phm_init_range", "learn_phm", "hypercomplex_nonlinearity", "phm_rank", "phm_bias"),
    *("bottleneck_size", "shared_gating"),
}
"""Options that do not change what a saved adapter computes (a prefix's bottleneck_size follows from its tensors), or
that do so only together with an option that is refused (phm_layer, use_gating)."""


class HubConfig(StrictModel):
    """The outer options of an adapter."""

    config: dict[str, Any]
    model_type: Text
    name: Annotated[str, Field(min_length=1, max_length=200)]
    model_name: Text | None = None
    hidden_size: int | None = None
    model_class: Text | None = None
    version: Text | None = None


def adapterhub_adapter(subject: Subject, name: str) -> Adapter:
    """Return a bank as an adapter.

    Args:
        subject: the task.
        name: the adapter's name, which is part of the tensors' paths.

    Raises:
        InputError: if `adapters` has no equivalent method for this family.
    """
    check_bank(subject.plan.name, subject.plan.bank, "adapters")
    family = str(subject.backbone.model.config.model_type)
    if family not in PLACES:
        raise refused(subject, f"its model type {family!r} is not one of {', '.join(PLACES)}")
    by_form: dict[str, list[Modification]] = {}
    for row in subject.plan.bank.modifications:
        by_form.setdefault(row.form, []).append(row)
    methods = [method for form, rows in by_form.items() for method in _OF_FORM[form].of(subject, rows)]
    if sum(isinstance(method, LoraMethod) for method, _ in methods) > 1:
        raise refused(subject, "its bank has LoRA and IA3, and a union of adapters can contain only one of the two")
    tensors: dict[str, Tensor] = {}
    for method, rows in methods:
        for stacked in method.tensors(subject.bank, rows, name):
            assert stacked.path is not None
            tensors[stacked.path] = method.join(stacked.parts)
            if (why := method.why_not(subject.backbone, stacked, stacked.parts)) is not None:
                raise refused(subject, why)
    configs = [method.written() for method, _ in methods]
    return Adapter(configs[0] if len(configs) == 1 else {"architecture": "union", "configs": configs}, tensors)


def write_adapters(subject: Subject, folder: Path) -> float:
    """Write a task's adapter into a folder, read it back, and compare it with the bank.

    Args:
        subject: the task.
        folder: an empty folder.

    Returns:
        The largest difference found; see `check_outputs`.

    Raises:
        InputError: if `adapters` has no equivalent method.
        ExportError: if the files do not compute the same as the bank.
    """
    plan = subject.plan
    # In adapters, the name becomes a module's name, which cannot contain a dot.
    name = plan.name.replace(".", "_")
    adapter = adapterhub_adapter(subject, name)
    config = described(subject, name, type(subject.backbone.model.base_model).__name__, adapter.config)
    (folder / CONFIG).write_bytes(json_bytes(config))
    save_tensors(adapter.tensors, folder / TENSORS, {})
    theirs = hub_head(subject, name)
    if theirs is not None:
        (folder / HEAD_CONFIG).write_bytes(json_bytes(theirs[0]))
        save_tensors(theirs[1], folder / HEAD_TENSORS, {})
    elif isinstance(subject.bank.head, LinearHead):
        save_head(subject, subject.bank.head, folder)
    headed, kind = theirs is not None, kind_of(plan)
    how = Loading(
        library="adapters",
        auto="" if headed else auto_class(plan.kind) if kind.generates else "AutoModel",
        headed=headed,
        one_by_one=headed and plan.pooling == "last" and not kind.per_word,
    )
    code = write_readme(subject, folder, how, {})
    files = read_hub_files(folder)
    model = adapterhub_computed(
        subject, whole=files.config, stored=files.tensors, head=files.head, theirs=files.hub_head
    )
    return check_export(subject, code, folder, model, model.output)


def read_hub_files(folder: str | Path) -> AdapterFiles:
    """Read the folder of an adapter of `adapters`, and the head saved with it, if there is one.

    If there is a head.safetensors, it is read instead of the library's head.

    Raises:
        InputError: if a file is missing, too large or damaged, or a bank cannot express the head.
    """
    root = Path(folder)
    tensors = _first(root, TENSORS, PICKLE)
    if tensors is None:
        raise InputError(f"folder: {root} has neither {TENSORS} nor {PICKLE}; it is incomplete.")
    described = root / HEAD_CONFIG
    theirs = None if (root / HEAD).is_file() else _first(root, HEAD_TENSORS, HEAD_PICKLE)
    if theirs is None:
        return read_files(root, tensors.name)
    files = read_files(root, tensors.name, theirs, described)
    config, parts = read_config(described), read_tensor_file(theirs, files.digests)
    head, notes = read_hub_head(config, parts)
    if not head:
        return replace(files, notes=notes, copies=parts)
    return replace(files, head=head, notes=notes, hub_head=config)


def _first(folder: Path, *names: str) -> Path | None:
    """Return the first of the named files that exists; None if none does."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_hub_config(whole: Mapping[str, Any]) -> tuple[HubConfig, list[Method]]:
    """Return the options of an adapter, and its methods.

    Raises:
        InputError: if a value is not allowed, or an option is set that a bank cannot express.
    """
    outer = read_options(HubConfig, whole, set(), refused_option, off=_OFF)
    if outer.config.get("architecture") != "union":
        return outer, [_method(outer.config)]
    inner = outer.config.get("configs")
    listed = inner if isinstance(inner, list) and all(isinstance(config, dict) for config in inner) else []
    if not 1 <= len(listed) <= _MAX_METHODS:
        raise refused_option("config.configs", inner, f"expected a list of 1 to {_MAX_METHODS} configurations")
    methods = [_method(config) for config in listed]
    alone = [type(method) for method in methods if not isinstance(method, BottleneckMethod)]
    if len({method.leave_out for method in methods}) > 1 or len(set(alone)) < len(alone):
        raise InputError(
            "adapter_config.json: key config.configs: its methods must have the same layers "
            "(leave_out), since a bank has one set of layers, and it may have LoRA and prefixes only once each."
        )
    return outer, methods


_OFF: tuple[Any, ...] = ("", 0, [], {})


def _method(config: Mapping[str, Any]) -> Method:
    kind = config.get("architecture")
    cls = _OF_ARCHITECTURE.get(kind) if kind is None or isinstance(kind, str) else None
    if cls is None:
        why = "only bottlenecks, lora, prefix_tuning and unions of these can be imported"
        raise refused_option("config.architecture", kind, why)
    return read_options(cls, config, _WITHOUT_EFFECT, refused_option, off=_OFF)


def translate_hub(files: AdapterFiles, backbone: Backbone, *, kind: str | None, pooling: str | None) -> Imported:
    """Translate an adapter of `adapters` into a bank; see `continual_petl.exchange.peft.adapter.translate_peft`.

    Raises:
        InputError: if a bank cannot express it.
    """
    outer, methods = read_hub_config(files.config)
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
    stored = _without_copies(stored)
    numbers = [layer.number for layer in backbone.sites.layers if layer.number not in methods[0].leave_out]
    if not numbers:
        raise InputError("adapter_config.json: key leave_out: it leaves out all layers, so there is nothing to import.")
    draft = _joined(methods, outer.name, backbone, layer_range(numbers, backbone.num_layers), stored)
    whole = {"name": outer.name, "config": {"configs": [method.model_dump() for method in methods]}}
    computes = partial(adapterhub_computed, whole=whole, stored=stored, theirs=files.hub_head)
    names = "+".join("ia3" if isinstance(m, LoraMethod) and m.scales else m.name for m in methods)
    return Imported(draft, head, outer.model_name or None, None, "adapters", names, stored, computes)


def _joined(methods: Sequence[Method], name: str, backbone: Backbone, layers: str, tensors: dict[str, Tensor]) -> Draft:
    """Return the draft of a bank that combines all methods.

    Args:
        methods: the methods.
        name: the adapter's name.
        backbone: the backbone.
        layers: the layers that the bank modifies.
        tensors: the tensors of the adapter.
    """
    groups = [method.rows(backbone) for method in methods]
    spec = BankSpec.model_validate({"modifications": [row for group in groups for row in group], "layers": layers})

    @torch.no_grad()
    def fill(bank: Bank) -> None:
        left, rows = set(tensors), iter(spec.modifications)

        def take(path: str) -> Tensor:
            if path not in tensors:
                raise InputError(
                    f"folder: the tensor {path[:300]!r} that adapter_config.json asks for is missing; the folder is "
                    "incomplete."
                )
            left.discard(path)
            return tensors[path]

        for method, group in zip(methods, groups, strict=True):
            for stacked in method.tensors(bank, [next(rows) for _ in group], name):
                if stacked.path is None:
                    for parameter in stacked.parts:
                        parameter.zero_()
                    continue
                values = method.split(stacked, backbone, take)
                if (why := method.why_not(backbone, stacked, values)) is not None:
                    raise InputError(f"adapter_config.json: key intermediate_lora: {why}.")
                for parameter, value in zip(stacked.parts, values, strict=True):
                    put(parameter, value, stacked.path)
        if left:
            raise InputError(
                f"folder: the tensor {min(left)[:300]!r} is not one that adapter_config.json asks for; the adapter has "
                "parts that cannot be imported, or the configuration and the weights file do not belong together."
            )

    return Draft(spec, fill)


_COPIES = ".prefix_tuning.pool."


def _without_copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors without the copies of the prefix pool that `adapters` saves for every attention module.

    Raises:
        InputError: if a copy differs from its original.
    """
    kept = {name: tensor for name, tensor in tensors.items() if _COPIES not in name}
    for name, tensor in tensors.items():
        if _COPIES not in name:
            continue
        original = kept.get(f"prefix_tuning.{name.partition(_COPIES)[2]}")
        if original is None or original.shape != tensor.shape or not bool((original == tensor).all()):
            raise InputError(
                f"folder: the tensor {name[:300]!r} should be a copy of a tensor in the prefix pool, but differs from it; "
                "the file is damaged, or was changed."
            )
    return kept


def _head(files: AdapterFiles, kind: str, backbone: Backbone, pooling: str | None) -> ImportedHead:
    """Return the head, read from head.safetensors or from the head that `adapters` saved beside the adapter."""
    for name, asked in (("kind", kind), ("pooling", pooling)) if files.hub_head is not None else ():
        if asked is not None and asked != files.notes.get(name, asked):
            raise InputError(
                f"{name}: got {asked[:100]!r}, but head_config.json says {files.notes[name]!r}: leave out {name}."
            )
    copies = dict(files.copies)
    if find_kind(kind).generates:
        # A language-modelling head that is the backbone's is none of its own.
        own = backbone.model.state_dict()
        copies = {n: t for n, t in copies.items() if n not in own or not torch.equal(own[n].float().cpu(), t.cpu())}
    head = find_head(files, kind, copies, backbone, pooling)
    if copies:
        raise InputError(
            f"folder: its head has the tensor {min(copies)[:200]!r}, but a bank's head is one linear layer on pooled states. "
            "Put such a layer into head.safetensors (weight, bias), which is read instead."
        )
    return head
