"""Adapters of `peft` 0.21: a bank as one that peft loads onto the plain backbone, and one as a bank; peft is not needed.

A written head is among the adapter's ``modules_to_save`` if the model's class has the same pooling and head; otherwise the
adapter is for the base model, and the head is a separate file; README.md shows how to apply it.

Whatever is written or read is compared with what peft computes with the files, restated in
`continual_petl.exchange.peft.reimplemented`, which reads the tensors as they are, so it detects mistakes in the translation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from continual_petl.backbones.backbone import Backbone
from continual_petl.errors import InputError, known_names
from continual_petl.exchange.adapter_files import (
    CONFIG,
    Adapter,
    AdapterFiles,
    head_notes,
    read_files,
    save_head,
    save_tensors,
)
from continual_petl.exchange.check_readme import check_export
from continual_petl.exchange.compare import Compute
from continual_petl.exchange.formats import PEFT_VIRTUAL, check_bank
from continual_petl.exchange.imported import Draft, Imported, ImportedHead, find_head, kind_of_adapter
from continual_petl.exchange.model_card import base_model
from continual_petl.exchange.peft.config import VIRTUAL, PeftConfig, is_target, matches, read_peft_config
from continual_petl.exchange.peft.lowrank import low_rank, read_low_rank
from continual_petl.exchange.peft.names import INSIDE, START, TABLE, Changed, Names, find_names, split_tensors
from continual_petl.exchange.peft.reimplemented import computed, num_skipped
from continual_petl.exchange.peft.vectors import factors, norm_copies, norms, read_factors, with_norms
from continual_petl.exchange.peft.virtual import prefix, prompt, read_prefix, read_prompt, table_of
from continual_petl.exchange.readme import write_readme
from continual_petl.exchange.readme_code import Loading
from continual_petl.exchange.subject import Subject
from continual_petl.heads.linear import LinearHead
from continual_petl.kind_registry import kind_of
from continual_petl.store.files.atomic import json_bytes

TENSORS = "adapter_model.safetensors"
PICKLE = "adapter_model.bin"
_BUILT: Mapping[str, Callable[[Subject, Names], Adapter]] = {
    "lowrank": low_rank,
    "decomposed": low_rank,
    "rescale": factors,
    "prompt": prompt,
    "attention": prefix,
}
"""Returns the adapter for modifications of a form."""


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
            save_head(subject, bank.head, folder)
        else:
            saved |= {f"{names.head}.{name}": tensor for name, tensor in head.items()}
            config["modules_to_save"] = [*config.get("modules_to_save", ()), names.head]
    start = "" if config["peft_type"] in VIRTUAL else START
    notes = {} if names.head is None else head_notes(subject)
    save_tensors({f"{start}{name}": tensor for name, tensor in saved.items()}, folder / TENSORS, notes)
    (folder / CONFIG).write_bytes(json_bytes(config))
    how = Loading(
        library="peft",
        auto=names.auto,
        headed=names.head is not None,
        one_by_one=config["peft_type"] == "PROMPT_TUNING" and kind_of(subject.plan).continues,
        skipped=num_skipped(subject, config),
    )
    code = write_readme(subject, folder, how, config)
    files = read_peft_files(folder)
    model = computed(subject, names, files.config, files.tensors, files.head)
    return check_export(subject, code, folder, model, model.output)


def peft_adapter(subject: Subject) -> tuple[Names, Adapter]:
    """Return the model that a task's adapter is loaded onto, and the adapter.

    Raises:
        CannotExpressError: if peft has no such adapter.
    """
    spec, forms = subject.plan.bank, {m.form for m in subject.plan.bank.modifications}
    check_bank(subject.plan.name, spec, "peft")
    names = find_names(subject.plan, subject.backbone, headless=not forms.isdisjoint(PEFT_VIRTUAL))
    if not forms:
        return names, norms(subject, names)
    # Only changes by the same function can be in one adapter of peft.
    adapter = _BUILT[min(forms)](subject, names)
    if spec.layernorms == "own":
        copies = norm_copies(subject, names)
        adapter.config["modules_to_save"] = sorted({name.rpartition(".")[0] for name in copies})
        adapter.tensors.update(copies)
    return names, adapter


def read_peft_files(folder: str | Path) -> AdapterFiles:
    """Read the folder of a `peft` adapter.

    Raises:
        InputError: if a file is missing, too large, damaged, or could execute code when it is read.
    """
    root = Path(folder)
    config, tensors = root / CONFIG, root / TENSORS
    if not config.is_file():
        raise InputError(
            f"folder: {root} has no {CONFIG}, so it is not a peft adapter. Give the folder that save_pretrained wrote."
        )
    if not tensors.is_file():
        instead = (
            f" It has {PICKLE}, which can execute code when it is read: if you trust it, load it with peft and save "
            "it again (save_pretrained writes safetensors)."
        )
        raise InputError(
            f"folder: {root} has no {TENSORS}.{instead if (root / PICKLE).exists() else ' It is incomplete.'}"
        )
    return read_files(root, TENSORS)


def translate_peft(files: AdapterFiles, backbone: Backbone, *, kind: str | None, pooling: str | None) -> Imported:
    """Translate a peft adapter into a bank.

    Args:
        files: its files.
        backbone: the backbone that it was trained on.
        kind: the kind of the task; None takes it from the adapter.
        pooling: how states are pooled before a head in a file of its own; None takes it from the file, or from the stream.

    Raises:
        InputError: if a bank cannot express it.
    """
    config = read_peft_config(files.config)
    task_kind = kind_of_adapter(files, config.task_type, backbone, kind)
    if config.peft_type in VIRTUAL:
        table = table_of(files.tensors, config)
        draft = (read_prefix if config.peft_type == "PREFIX_TUNING" else read_prompt)(config, table, backbone)
        # Besides the table, peft saves the head of the class.
        copies = {name.removeprefix("base_model."): t for name, t in files.tensors.items() if name != TABLE}
        stored = {TABLE: table, **copies}
        head = find_head(files, task_kind, copies, backbone, pooling)
        if copies:
            raise InputError(
                f"adapter_model.safetensors: tensor {min(copies)[:200]!r} does not belong to peft_type "
                f"{config.peft_type}; the file is damaged, or was written for another method."
            )
        if head.module is not None and head.pooling == "last" and config.peft_type != "PREFIX_TUNING":
            raise InputError(
                f"folder: after a prompt, the class of this adapter ({config.task_type}) reads the last position of a batch "
                "even where that is padding, which no pooling of a bank does. Train the adapter on the base model "
                "(FEATURE_EXTRACTION), with a linear head in head.safetensors."
            )
        return _imported(config, stored, _names(config, backbone, head, ""), draft, head, {})
    _check_names(files.tensors)
    changed, copies = split_tensors(files.tensors)
    head = find_head(files, task_kind, copies, backbone, pooling)
    names = _names(config, backbone, head, _base(backbone, [*changed, *(name.rpartition(".")[0] for name in copies)]))
    _check_targets(config, changed, copies)
    read = _READ.get(config.peft_type)
    translated = None if read is None else read(config, changed, names, backbone)
    norms = names.replaced(changed, copies)
    if norms or translated is None:
        translated = with_norms(translated, norms, backbone)
    return _imported(config, files.tensors, names, translated, head, changed)


_READ: Mapping[str, Callable[[PeftConfig, Changed, Names, Backbone], Draft]] = {
    "LORA": read_low_rank,
    "IA3": read_factors,
}


def _names(config: PeftConfig, backbone: Backbone, head: ImportedHead, prefix: str) -> Names:
    """Return the names of modules in the model that an adapter was trained on."""
    modules = {prefix + name for name, _ in backbone.model.base_model.named_modules() if name}
    return Names("", config.task_type, head.module, prefix, backbone.sites.base, modules)


def _imported(
    config: PeftConfig, stored: dict[str, Tensor], names: Names, draft: Draft, head: ImportedHead, changed: Changed
) -> Imported:
    known = config.model_dump()
    inner = [name for name in changed if matches(config.feedforward_modules, name)]
    # The targets were checked above; the comparison needs full names.
    known |= {"target_modules": sorted(changed), "feedforward_modules": inner}
    known["peft_type"] = "PROMPT_TUNING" if config.peft_type == "P_TUNING" else config.peft_type
    method = "DoRA" if config.use_dora else config.peft_type
    computes = partial(_computes, names=names, config=known, stored=stored)
    return Imported(
        draft, head, config.base_model_name_or_path, config.revision, "peft", method, dict(stored), computes
    )


def _computes(
    subject: Subject, *, head: dict[str, Tensor], names: Names, config: dict[str, Any], stored: dict[str, Tensor]
) -> Compute:
    """Return a function that computes what peft computes with the adapter."""
    return computed(subject, names, config, stored, {} if names.head is not None else head)


def _check_names(tensors: dict[str, Tensor]) -> None:
    """Raise `InputError` if a tensor's name does not start with peft's prefix."""
    if unknown := next((name for name in tensors if not name.startswith(START)), None):
        raise InputError(
            f"adapter_model.safetensors: tensor {unknown[:200]!r} does not follow peft's naming ({START}...); the adapter "
            "was written by another library."
        )


def _base(backbone: Backbone, names: list[str]) -> str:
    """Return the prefix of the base model in the wrapped model, inferred from the modules that the adapter names.

    Raises:
        InputError: if a module is not in the backbone.
    """
    model = backbone.model.base_model
    modules = {name for name, _ in model.named_modules() if name}
    starts = ("", f"{model.base_model_prefix}.")
    for start in starts:
        if all(name.startswith(start) and name.removeprefix(start) in modules for name in names):
            return start
    unknown = [name for name in names if all(name.removeprefix(start) not in modules for start in starts)]
    raise InputError(
        f"adapter_model.safetensors: this backbone ({backbone.anatomy.family}) has no module {(unknown or names)[0][:200]!r} "
        "in the place that the names suggest: the adapter belongs to another base model, or to another version of it."
    )


def _check_targets(config: PeftConfig, changed: Changed, copies: dict[str, Tensor]) -> None:
    """Raise `InputError` if peft would not use all of these tensors."""
    unused = [name for name in changed if not is_target(config, name)]
    saved = {*(config.modules_to_save or ()), "classifier", "score"}
    unused += [name for name in copies if not matches(saved, name.rpartition(".")[0])]
    if unused:
        raise InputError(
            f"adapter_config.json: peft would not load the tensors of {known_names(unused, limit=3)}, which target_modules "
            "(with exclude_modules and layers_to_transform) and modules_to_save leave out: the configuration and the weights "
            "file do not belong together."
        )
    start = "lora_" if config.peft_type == "LORA" else "ia3_l" if config.peft_type == "IA3" else INSIDE
    unknown = [f"{name}.{part}" for name, parts in changed.items() for part in parts if not part.startswith(start)]
    if unknown or not (changed or copies):
        raise InputError(
            "adapter_model.safetensors: "
            f"{f'tensor {unknown[0][:200]!r} does not belong' if unknown else 'no tensor belongs'} to peft_type "
            f"{config.peft_type}; the file is damaged, or was written for another method."
        )
