"""Writes an adapter of `adapters` into a folder; the library itself is not needed for that."""

from __future__ import annotations

from pathlib import Path

from continual_petl.exchange.adapter_files import HEAD, head_notes, save_tensors
from continual_petl.exchange.adapterhub.adapter import adapterhub_adapter
from continual_petl.exchange.adapterhub.head import HEAD_CONFIG, HEAD_TENSORS, hub_head
from continual_petl.exchange.adapterhub.parts import VERSION
from continual_petl.exchange.adapterhub.reimplemented import adapterhub_reimplemented
from continual_petl.exchange.check_readme import OnDevice, check_written
from continual_petl.exchange.classes import auto_class
from continual_petl.exchange.compare import check_outputs
from continual_petl.exchange.model_card import HERE, base_model
from continual_petl.exchange.readme import adapters_card
from continual_petl.exchange.readme_code import Loading, code_of
from continual_petl.exchange.subject import Subject
from continual_petl.heads.linear import LinearHead
from continual_petl.kind_registry import kind_of
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
        save_tensors(dict(bank.head.output.named_parameters()), folder / HEAD, head_notes(subject))
    code = code_of(subject, _loading(subject, base, with_head=theirs is not None))
    (folder / "README.md").write_text(adapters_card(subject, code), encoding="utf-8")
    model = adapterhub_reimplemented(subject, folder)
    difference = check_outputs(subject, model)
    check_written(subject, code, folder, OnDevice(model.output, backbone.model.device), generates=False)
    return difference


def _loading(subject: Subject, base: str, *, with_head: bool) -> Loading:
    """Return how the code in README.md loads an adapter.

    Args:
        subject: the task.
        base: the name or path that the backbone is loaded from.
        with_head: whether the head is in the format of `adapters`, so that `load_adapter` loads it too.
    """
    plan = subject.plan
    revision = "" if subject.backbone.revision is None else f", revision={subject.backbone.revision!r}"
    eager = ', attn_implementation="eager"' if subject.bank.prefixes() else ""
    auto = "" if with_head else auto_class(plan.kind) if kind_of(plan).generates else "AutoModel"
    load = [f"model = {auto or 'AutoAdapterModel'}.from_pretrained(BASE{revision}{eager})"]
    load += [] if with_head else ["adapters.init(model)"]
    load += ["model.set_active_adapters(model.load_adapter(ADAPTER, use_safetensors=True))", "model = model.eval()"]
    return Loading(
        modules=("from adapters import AutoAdapterModel",) if with_head else ("import adapters",),
        auto=auto,
        place=f'BASE, ADAPTER = {base!r}, "{HERE}"',
        model=tuple(load),
        source=f"BASE{revision}",
        separate=not kind_of(plan).generates and not with_head,
        one_by_one=with_head and plan.pooling == "last" and not kind_of(plan).per_word,
    )
