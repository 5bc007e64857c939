"""A `peft` adapter as a bank: its files are translated, and the bank's outputs are compared with what peft computes.

The comparison uses `continual_petl.exchange.peft.reimplemented`, which reads the adapter's tensors as they are, so it detects
mistakes in the translation.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from continual_petl.backbones.backbone import Backbone
from continual_petl.errors import InputError, known_names
from continual_petl.exchange.adapter_files import AdapterFiles
from continual_petl.exchange.adapter_head import ImportedHead, find_head, kind_of_adapter
from continual_petl.exchange.compare import Compute
from continual_petl.exchange.draft import Draft
from continual_petl.exchange.imported import Imported
from continual_petl.exchange.peft.adapter import Names
from continual_petl.exchange.peft.read_config import VIRTUAL, PeftConfig, is_target, matches, read_peft_config
from continual_petl.exchange.peft.read_lowrank import low_rank
from continual_petl.exchange.peft.read_vectors import factors, with_norms
from continual_petl.exchange.peft.read_virtual import TABLE, prefix, prompt, table_of
from continual_petl.exchange.peft.reimplemented import START, computed, split_tensors
from continual_petl.exchange.subject import Subject

_INSIDE = "ln_tuning_layers."


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
        draft = (prefix if config.peft_type == "PREFIX_TUNING" else prompt)(config, table, backbone)
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
        return _imported(config, stored, backbone, draft, head, "", {})
    _check_names(files.tensors)
    changed, copies = split_tensors(files.tensors)
    head = find_head(files, task_kind, copies, backbone, pooling)
    prefix_of_base = _base(backbone, [*changed, *(name.rpartition(".")[0] for name in copies)])
    _check_targets(config, changed, copies)
    inside = backbone.sites.base
    names = {inside + name.removeprefix(prefix_of_base): name for name in changed}
    by_path = {path: changed[name] for path, name in names.items()}
    norms = {inside + name.removeprefix(prefix_of_base): tensor for name, tensor in copies.items()}
    model: nn.Module = backbone.model
    translated: Draft | None = None
    if config.peft_type == "LORA":
        translated = low_rank(config, by_path, names, model, backbone.sites)
    elif config.peft_type == "IA3":
        translated = factors(config, by_path, names, model, backbone.sites)
    else:
        norms |= {
            f"{path}.{part.removeprefix(_INSIDE)}": t for path, parts in by_path.items() for part, t in parts.items()
        }
    if norms or translated is None:
        translated = with_norms(translated, norms, model, backbone.sites)
    return _imported(config, files.tensors, backbone, translated, head, prefix_of_base, changed)


def _imported(
    config: PeftConfig,
    stored: dict[str, Tensor],
    backbone: Backbone,
    draft: Draft,
    head: ImportedHead,
    start: str,
    changed: dict[str, dict[str, Tensor]],
) -> Imported:
    modules = {start + name for name, _ in backbone.model.base_model.named_modules() if name}
    names = Names("", config.task_type, head.module, start, backbone.sites.base, modules)
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
    device = subject.backbone.model.device
    placed = {name: tensor.to(device) for name, tensor in stored.items()}
    return computed(subject, names, config, placed, {} if names.head is not None else head)


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


def _check_targets(config: PeftConfig, changed: dict[str, dict[str, Tensor]], copies: dict[str, Tensor]) -> None:
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
    start = "lora_" if config.peft_type == "LORA" else "ia3_l" if config.peft_type == "IA3" else _INSIDE
    unknown = [f"{name}.{part}" for name, parts in changed.items() for part in parts if not part.startswith(start)]
    if unknown or not (changed or copies):
        raise InputError(
            "adapter_model.safetensors: "
            f"{f'tensor {unknown[0][:200]!r} does not belong' if unknown else 'no tensor belongs'} to peft_type "
            f"{config.peft_type}; the file is damaged, or was written for another method."
        )
