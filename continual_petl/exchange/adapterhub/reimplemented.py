"""Computes what `adapters` 1.3 computes with an adapter's files, without that library: files in, logits out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from continual_petl.backbones.backbone import pool
from continual_petl.banks.attach import Parts, one_pass, reserved
from continual_petl.banks.attention_hooks import changed_heads
from continual_petl.errors import ExportError
from continual_petl.exchange.adapter_files import HEAD
from continual_petl.exchange.adapterhub.head import HEAD_CONFIG, HEAD_TENSORS, read_by_head
from continual_petl.exchange.adapterhub.hooks import Hooks, add_hooks
from continual_petl.exchange.subject import Subject
from continual_petl.kind_registry import kind_of
from continual_petl.learner.task_bank import reading_inputs


def adapterhub_reimplemented(subject: Subject, folder: Path) -> Reimplemented:
    """Return the model that `adapters` makes of the files in a folder.

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
) -> Reimplemented:
    """Return the model that `adapters` makes of the content of an adapter's files.

    Args:
        subject: the task; only its backbone, pooling and kind are read.
        whole: the configuration.
        stored: the tensors.
        head: the head's tensors, weight and bias.
        theirs: the head's configuration, if the head is in the format of `adapters`.

    Raises:
        ExportError: if the tensors are not those that the configuration asks for.
    """
    model = subject.backbone.model
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

    return Reimplemented(subject=subject, hooks=hooks, head=head, theirs=theirs)


@dataclass(frozen=True, kw_only=True)
class Reimplemented:
    """A model with an adapter, as `adapters` computes it."""

    subject: Subject
    hooks: Hooks
    head: Mapping[str, Tensor]
    theirs: Mapping[str, Any] | None

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the logits."""
        plan = self.subject.plan
        if kind_of(plan).generates:
            logits: Tensor = self._output(dict(inputs)).logits
            return logits
        output = self._output(dict(reading_inputs(self.subject.backbone, inputs)))
        if self.theirs is not None:
            return self._headed(output, inputs)
        token, mask = kind_of(plan).per_word, inputs.get("attention_mask")
        features = output.last_hidden_state if token else pool(output, mask, plan.pooling)
        return F.linear(features, self.head["weight"], self.head["bias"])

    def output(self, **inputs: Tensor) -> Any:
        """Return the output of the model as `adapters` returns it: with logits, if it has a class for the head."""
        if self.theirs is None:
            return self._output(dict(inputs))
        output = self._output(dict(reading_inputs(self.subject.backbone, inputs)))
        output.logits = self._headed(output, inputs)
        return output

    def _headed(self, output: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        assert self.theirs is not None
        states = read_by_head(self.subject, self.theirs, output, inputs)
        return F.linear(states, self.head["weight"], self.head["bias"])

    def _output(self, given: dict[str, Any]) -> Any:
        subject, model = self.subject, self.subject.backbone.model
        with reserved(model), changed_heads(model, self.hooks.heads), ExitStack() as stack:
            for module, hook in self.hooks.outputs:
                stack.enter_context(module.register_forward_hook(hook))
            return one_pass(model, Parts(sites=subject.bank.sites), given, base=not kind_of(subject.plan).generates)


def _wrong(subject: Subject, tensor: str) -> str:
    return (
        f"task {subject.plan.name!r}: the configuration of the exported adapter asks for tensors other than those written, "
        f"such as {tensor}. Nothing was written; please report this with the versions of transformers and of continual-petl."
    )
