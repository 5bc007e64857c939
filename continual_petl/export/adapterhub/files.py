"""Writes an adapter of `adapters` into a folder; the library itself is not needed for that."""

from __future__ import annotations

from pathlib import Path

from continual_petl.export.adapterhub.adapter import adapterhub_adapter
from continual_petl.export.adapterhub.head import HEAD_CONFIG, HEAD_TENSORS, hub_head
from continual_petl.export.adapterhub.parts import VERSION
from continual_petl.export.adapterhub.restated import adapterhub_restated
from continual_petl.export.card import adapters_card
from continual_petl.export.compare import check_outputs
from continual_petl.export.head_file import HEAD, head_notes, save_tensors
from continual_petl.export.model_card import base_model
from continual_petl.export.subject import Subject
from continual_petl.heads.linear import LinearHead
from continual_petl.store.files.atomic import json_bytes


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
    plan, backbone, bank = subject.plan, subject.backbone, subject.bank
    # In adapters, the name becomes a module's name, which cannot contain a dot.
    name = plan.name.replace(".", "_")
    adapter = adapterhub_adapter(subject, name)
    base = base_model(backbone.name) or backbone.name
    config = {
        "config": adapter.config,
        "hidden_size": backbone.hidden_size,
        "model_class": type(backbone.model.base_model).__name__,
        "model_name": base,
        "model_type": str(backbone.model.config.model_type),
        "name": name,
        "version": VERSION,
    }
    (folder / "adapter_config.json").write_bytes(json_bytes(config))
    save_tensors(adapter.tensors, folder / "adapter.safetensors", {})
    theirs = hub_head(subject, name, base)
    if theirs is not None:
        (folder / HEAD_CONFIG).write_bytes(json_bytes(theirs[0]))
        save_tensors(theirs[1], folder / HEAD_TENSORS, {})
    elif isinstance(bank.head, LinearHead):
        head = {part: tensor.detach() for part, tensor in bank.head.output.named_parameters()}
        save_tensors(head, folder / HEAD, head_notes(subject))
    (folder / "README.md").write_text(adapters_card(subject, base, with_head=theirs is not None), encoding="utf-8")
    return check_outputs(subject, adapterhub_restated(subject, folder))
