"""Computes what `adapters` 1.3 computes with an adapter's files, without that library: files in, logits out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from continual_petl.backbones.backbone import pool
from continual_petl.banks.attach import one_pass, turn
from continual_petl.banks.attention_hooks import changed_heads
from continual_petl.errors import ExportError
from continual_petl.export.adapterhub.head import HEAD_CONFIG, HEAD_TENSORS, read_by_head
from continual_petl.export.adapterhub.hooks import Hooks, add_hooks
from continual_petl.export.compare import Compute
from continual_petl.export.head_file import HEAD
from continual_petl.export.subject import Subject
from continual_petl.heads.kinds import GENERATIVE
from continual_petl.learner.answer import reading_inputs


def adapterhub_restated(subject: Subject, folder: Path) -> Compute:
    """Return a function that computes a model's logits as `adapters` would with the files in a folder.

    Raises:
        ExportError: if the tensors are not those that the configuration asks for.
    """
    device = str(subject.backbone.model.device)
    whole = json.loads((folder / "adapter_config.json").read_text("utf-8"))
    stored = load_file(folder / "adapter.safetensors")
    if (folder / HEAD_CONFIG).is_file():
        theirs = json.loads((folder / HEAD_CONFIG).read_text("utf-8"))
        tensors, start = load_file(folder / HEAD_TENSORS, device=device), f"heads.{theirs['name']}.1."
        head = {name.removeprefix(start): tensor for name, tensor in tensors.items()}
        return adapterhub_computed(subject, whole=whole, stored=stored, head=head, theirs=theirs)
    head = load_file(folder / HEAD, device=device) if (folder / HEAD).is_file() else {}
    return adapterhub_computed(subject, whole=whole, stored=stored, head=head)


def adapterhub_computed(
    subject: Subject,
    *,
    whole: Mapping[str, Any],
    stored: Mapping[str, Tensor],
    head: Mapping[str, Tensor],
    theirs: Mapping[str, Any] | None = None,
) -> Compute:
    """Return a function that computes a model's logits as `adapters` would with the content of an adapter's files.

    Args:
        subject: the task; only its backbone, pooling and kind are read.
        whole: the configuration.
        stored: the tensors.
        head: the head's tensors, weight and bias.
        theirs: the head's configuration, if the head is in the format of `adapters`.

    Raises:
        ExportError: if the tensors are not those that the configuration asks for.
    """
    model, sites = subject.backbone.model, subject.bank.sites
    used: set[str] = set()

    def take(path: str) -> Tensor:
        used.add(path)
        return stored[path].to(model.device)

    hooks = Hooks()
    try:
        for config in whole["config"].get("configs", [whole["config"]]):
            add_hooks(hooks, subject, config, whole["name"], take)
    except KeyError as error:
        raise ExportError(_wrong(subject, str(error))) from error
    if used != stored.keys():
        raise ExportError(_wrong(subject, repr(min(used ^ stored.keys()))))

    def compute(inputs: dict[str, Tensor]) -> Tensor:
        generates = subject.plan.kind in GENERATIVE
        given: dict[str, Any] = dict(inputs) if generates else dict(reading_inputs(subject.backbone, inputs))
        with turn(model), changed_heads(model, hooks.heads), ExitStack() as stack:
            for module, hook in hooks.outputs:
                stack.enter_context(module.register_forward_hook(hook))
            output = one_pass(model, sites, given, {}, 0, base=not generates)
        if generates:
            logits: Tensor = output.logits
            return logits
        if theirs is not None:
            return F.linear(read_by_head(subject, theirs, output, inputs), head["weight"], head["bias"])
        token, mask = subject.plan.kind == "token-classification", inputs.get("attention_mask")
        features = output.last_hidden_state if token else pool(output, mask, subject.plan.pooling)
        return F.linear(features, head["weight"], head["bias"])

    return compute


def _wrong(subject: Subject, tensor: str) -> str:
    return (
        f"task {subject.plan.name!r}: the configuration of the exported adapter asks for tensors other than those written, "
        f"such as {tensor}. Nothing was written; please report this with the versions of transformers and of continual-petl."
    )
