"""Exports a bank as an adapter of `adapters` 1.3: bottlenecks, prefixes, LoRA, IA3, and unions of these.

The exported folder has ``adapter_config.json`` and ``adapter.safetensors``; ``load_adapter(folder, use_safetensors=True)``
loads them. The format is taken from the source of ``adapters`` 1.3.0; the docstring of each method's module names the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from continual_petl.banks.config.spec import Modification
from continual_petl.exchange.adapterhub.bottleneck import bottlenecks
from continual_petl.exchange.adapterhub.lowrank import factors, low_rank
from continual_petl.exchange.adapterhub.parts import PLACES, HubAdapter, refused
from continual_petl.exchange.adapterhub.prefix import prefixes
from continual_petl.exchange.formats import check_bank
from continual_petl.exchange.subject import Subject

_METHODS: Mapping[str, Callable[[Subject, str, Sequence[Modification]], list[HubAdapter]]] = {
    "attention": prefixes,
    "bottleneck": bottlenecks,
    "lowrank": low_rank,
    "rescale": factors,
}


def adapterhub_adapter(subject: Subject, name: str) -> HubAdapter:
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
    rows: dict[str, list[Modification]] = {}
    for row in subject.plan.bank.modifications:
        rows.setdefault(row.form, []).append(row)
    parts = [part for form, group in rows.items() for part in _METHODS[form](subject, name, group)]
    lora = [part for part in parts if part.config.get("architecture") == "lora"]
    if len(lora) > 1:
        raise refused(subject, "its bank has LoRA and IA3, and a union of adapters can contain only one of the two")
    config = parts[0].config if len(parts) == 1 else {"architecture": "union", "configs": [p.config for p in parts]}
    tensors: dict[str, Tensor] = {}
    for part in parts:
        tensors |= part.tensors
    return HubAdapter(config, tensors)
