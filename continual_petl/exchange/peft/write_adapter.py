"""A bank as an adapter that `peft` loads onto the plain backbone; peft itself is not needed to write it.

The head is among the adapter's ``modules_to_save`` if the model's class has the same pooling and head; otherwise the adapter
is for the base model, and the head is a separate file; README.md shows how to apply it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from continual_petl.exchange.adapter_files import HEAD, head_notes, save_tensors
from continual_petl.exchange.check_readme import OnDevice, check_written
from continual_petl.exchange.compare import check_outputs
from continual_petl.exchange.formats import check_bank
from continual_petl.exchange.model_card import HERE, base_model
from continual_petl.exchange.peft.adapter import Adapter, Names, find_names
from continual_petl.exchange.peft.lowrank import low_rank
from continual_petl.exchange.peft.reimplemented import reimplemented
from continual_petl.exchange.peft.vectors import factors, norm_copies, norms
from continual_petl.exchange.peft.virtual import prefix, prompt
from continual_petl.exchange.readme import peft_card
from continual_petl.exchange.readme_code import Loading, code_of
from continual_petl.exchange.subject import Subject
from continual_petl.heads.linear import LinearHead
from continual_petl.kind_registry import kind_of
from continual_petl.store.files.atomic import json_bytes

_BUILT: Mapping[frozenset[str], Callable[[Subject, Names], Adapter]] = {
    frozenset({"lowrank"}): low_rank,
    frozenset({"decomposed"}): low_rank,
    frozenset({"lowrank", "decomposed"}): low_rank,
    frozenset({"rescale"}): factors,
    frozenset({"prompt"}): prompt,
    frozenset({"attention"}): prefix,
}


def write_peft(subject: Subject, folder: Path) -> float:
    """Write a task's adapter into a folder, read it back, and compare it with the bank.

    Args:
        subject: the task.
        folder: an empty folder.

    Returns:
        The largest difference found; see `check_outputs`.

    Raises:
        InputError: if peft has no such adapter.
        ExportError: if the adapter read back from the files gives different outputs from the bank.
    """
    backbone, bank = subject.backbone, subject.bank
    virtual = _is_virtual(subject)
    names, adapter = peft_adapter(subject)
    saved = dict(adapter.tensors)
    config = {
        "base_model_name_or_path": base_model(backbone.name) or backbone.name,
        "revision": backbone.revision,
        "task_type": names.task_type,
        "inference_mode": True,
        **adapter.config,
    }
    if isinstance(bank.head, LinearHead):
        head = dict(bank.head.output.named_parameters())
        if names.head is None:
            save_tensors(head, folder / HEAD, head_notes(subject))
        else:
            saved |= {f"{names.head}.{name}": tensor for name, tensor in head.items()}
            config["modules_to_save"] = [*config.get("modules_to_save", ()), names.head]
    start = "" if virtual else "base_model.model."
    notes = {} if names.head is None else head_notes(subject)
    save_tensors(
        {f"{start}{name}": tensor for name, tensor in saved.items()}, folder / "adapter_model.safetensors", notes
    )
    (folder / "adapter_config.json").write_bytes(json_bytes(config))
    code = code_of(subject, _loading(subject, names, config))
    (folder / "README.md").write_text(peft_card(subject, code, config), encoding="utf-8")
    model = reimplemented(subject, names, folder)
    difference = check_outputs(subject, model)
    check_written(subject, code, folder, OnDevice(model.output, backbone.model.device), generates=False)
    return difference


def _loading(subject: Subject, names: Names, config: Mapping[str, Any]) -> Loading:
    """Return how the code in README.md loads an adapter."""
    revision = "" if config["revision"] is None else f", revision={config['revision']!r}"
    labels = "" if names.head is None else f", num_labels={subject.plan.num_outputs}"
    prompt = config["peft_type"] == "PROMPT_TUNING"
    return Loading(
        modules=("from peft import PeftModel",),
        auto=names.auto,
        place=f'BASE, ADAPTER = {config["base_model_name_or_path"]!r}, "{HERE}"',
        model=(
            f"base = {names.auto}.from_pretrained(BASE{labels}{revision})",
            "model = PeftModel.from_pretrained(base, ADAPTER).eval()",
        ),
        source=f"BASE{revision}",
        generator="base",  # not every class of peft passes on its own settings
        separate=names.head is None and not kind_of(subject.plan).generates,
        one_by_one=prompt and kind_of(subject.plan).continues,
        skipped=config["num_virtual_tokens"] if prompt and not subject.backbone.anatomy.is_encoder_decoder else 0,
    )


def _is_virtual(subject: Subject) -> bool:
    return any(m.config.outside or m.config.in_heads for m in subject.plan.bank.modifications)


def peft_adapter(subject: Subject) -> tuple[Names, Adapter]:
    """Return the model that a task's adapter is loaded onto, and the adapter.

    Raises:
        CannotExpressError: if peft has no such adapter.
    """
    check_bank(subject.plan.name, subject.plan.bank, "peft")
    names = find_names(subject.plan, subject.backbone, headless=_is_virtual(subject))
    return names, _built(subject, names)


def _built(subject: Subject, names: Names) -> Adapter:
    spec = subject.plan.bank
    forms = frozenset(m.form for m in spec.modifications)
    own = spec.layernorms == "own"
    if not forms and own:
        return norms(subject, names)
    adapter = _BUILT[forms](subject, names)
    if own:
        copies = norm_copies(subject, names)
        adapter.config["modules_to_save"] = sorted({name.rpartition(".")[0] for name in copies})
        adapter.tensors.update(copies)
    return adapter
